"""Deduplication by key group: `flowcore.deduplication.keyed`."""
