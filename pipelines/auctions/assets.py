"""The reference flow in Dagster: who answers for it, and what its parts are."""

from __future__ import annotations

from flowcore.dagster import Expectations, flow_assets
from pipelines.auctions.flow import flow

__all__ = ["auctions"]

auctions = flow_assets(
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
