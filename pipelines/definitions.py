"""The definitions that Dagster loads, with one line for each flow."""

from flowcore.dagster import definitions
from pipelines.auctions.assets import activity, auctions

__all__ = ["defs"]

defs = definitions(
    auctions,
    activity,
)
