"""Joins of two streams by key group: interval joins, which also run window and regular joins; as-of joins."""
