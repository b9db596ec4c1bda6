"""Operators on key groups: windows, process functions and buffers, with state in Spark's state store."""
