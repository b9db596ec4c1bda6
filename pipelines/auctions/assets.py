"""The Dagster definitions of both flows, with owner, descriptions and expectations."""

from __future__ import annotations

from flowcore.dagster import Expectations, flow_assets
from pipelines.auctions.activity import flow as activity_flow
from pipelines.auctions.flow import flow

__all__ = ["activity", "auctions"]

auctions = flow_assets(
    flow,
    owners=["team:auctions"],
    tags={"domain": "auctions"},
    descriptions={
        "catalog": "Each past auction with its category, and the sales and median price of its seller.",
        "live": "Each live bid joined with its auction's row of the catalog; the highest bid per auction.",
    },
    expectations={
        "catalog": Expectations(
            unique=["auction_id"], ranges={"sold": (1, None), "median": (0, None)}, not_null=["seller"]
        )
    },
)

activity = flow_assets(
    activity_flow,
    owners=["team:auctions"],
    tags={"domain": "auctions"},
    descriptions={
        "live": "The bids of each auction in windows of 10 seconds, late bids, and the totals of each bidder."
    },
)
