"""Aggregates over rows that replace earlier rows, as operators on key groups: `changelog`, `aggregates`."""
