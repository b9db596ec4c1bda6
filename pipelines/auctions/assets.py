"""The reference flow in Dagster: who answers for it, and what its parts are."""

from __future__ import annotations

from pipelines.auctions.flow import flow
from pipelines.bridge import Expectations, bridge

__all__ = ["auctions"]

auctions = bridge(
    flow,
    owners=["team:auctions"],
    tags={"domain": "auctions"},
    descriptions={
        "catalog": "Each auction of history with its category and, of its seller, sales and median price.",
        "live": "Each live bid beside its auction's row of the catalog; the highest price of each auction.",
    },
    expectations={
        "catalog": Expectations(
            unique=["auction_id"], ranges={"sold": (1, None), "median": (0, None)}, not_null=["seller"]
        )
    },
)
