"""Runs: sessions, bounded stages as batch jobs, and live queries from their start to their stop."""
