"""Bounded results: Parquet tables that a manifest makes visible, and the versions that live queries join."""
