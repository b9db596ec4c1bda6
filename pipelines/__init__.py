"""Dagster definitions, and the reference flow that they run."""
