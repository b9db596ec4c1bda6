"""Joins of two streams by key group: interval (also for window and regular joins), as-of and latest joins."""
