"""The reference flow's Dagster definitions, with owner, descriptions and expectations."""

from __future__ import annotations

from flowcore.dagster import Expectations, flow_assets
from pipelines.auctions.flow import flow

__all__ = ["auctions"]

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
