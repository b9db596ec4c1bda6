"""Aggregates and ranks of rows that replace earlier rows, as operators on key groups."""
