"""Sorting by event time: `flowcore.sorting.keyed`."""
