"""This repository's Dagster project: definitions, the reference flow, and its event generator."""
