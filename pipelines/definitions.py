"""What Dagster loads: one line for each flow."""

from pipelines.auctions.assets import auctions
from pipelines.bridge import definitions

__all__ = ["defs"]

defs = definitions(
    auctions,
)
