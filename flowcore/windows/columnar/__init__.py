"""Vectorised windows: built-in aggregates over whole columns, with NumPy."""
