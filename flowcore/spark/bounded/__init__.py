"""Bounded stages: what runs to the end of its input, and what it leaves behind."""
