"""Operators as DataFrames: native ones, chains of Python functions, and operators with state by key group."""
