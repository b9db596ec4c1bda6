"""Options: what a person may say about a flow beyond what its plan tells, in Python or in YAML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from dagster import Model, Resolvable
from pydantic import Field

from flowcore.dagster.restarts import RestartPolicy

__all__ = ["Automation", "Expectations", "Notes", "Objectives"]


class Notes(Model, Resolvable):
    """Who answers for a flow, and what its parts mean."""

    owners: Sequence[str] = Field(default=(), description="E-mail addresses, or team:name.")
    group: str | None = Field(default=None, description="Group of its assets. Default: the flow's name.")
    tags: Mapping[str, str] = Field(default={}, description="Put on every asset of the flow.")
    descriptions: Mapping[str, str] = Field(
        default={},
        description="Markdown by the name of a table or sink; that of `live` is of the live queries.",
    )


class Automation(Model, Resolvable):
    """When a flow runs by itself. What starts a run is off until a person turns it on, but for restarts."""

    refresh_cron: str = Field(default="0 3 * * *", description="When the bounded stages are run anew.")
    slice_cron: str = Field(default="*/5 * * * *", description="When the live queries catch up and end.")
    lag_records: int = Field(
        default=100_000, gt=0, description="Unread records at which the sensor of lag launches a run."
    )
    lag_job: Literal["slice", "live"] = Field(default="slice", description="Which job it launches.")
    retries: int = Field(
        default=2, ge=0, description="How often Dagster repeats at once a run whose process was killed."
    )
    restarts: int = Field(
        default=8, ge=0, description="Restarts of a crashed live run in a row before a person has to look."
    )
    first_wait_s: float = Field(
        default=5.0, ge=0, description="Seconds to the first restart; each further one doubles them."
    )
    longest_wait_s: float = Field(default=300.0, ge=0, description="They grow no longer than this.")
    stable_s: float = Field(
        default=600.0, gt=0, description="A live run that lived so many seconds begins a new row of restarts."
    )
    start_s: float = Field(
        default=300.0, gt=0, description="A live run that has not beaten so long after its start is lost."
    )
    silent_s: float = Field(
        default=120.0, gt=0, description="One that has beaten is lost so many seconds after its last beat."
    )

    @property
    def restart_policy(self) -> RestartPolicy:
        """When a crashed live run is launched again."""
        return RestartPolicy(
            first_wait_s=self.first_wait_s,
            longest_wait_s=self.longest_wait_s,
            limit=self.restarts,
            stable_s=self.stable_s,
            start_s=self.start_s,
            silent_s=self.silent_s,
        )


class Objectives(Model, Resolvable):
    """What a flow's stream shall hold; asset checks say whether it does."""

    late_share: float = Field(
        default=0.01, ge=0, le=1, description="Most records of a query that come too late, by those it read."
    )
    dead_letter_share: float = Field(
        default=0.001, ge=0, le=1, description="Most messages of a query that are refused, by those it read."
    )
    latency_p99_ms: float | None = Field(
        default=None,
        gt=0,
        description="Longest latency of 99 of 100 markers, from any source to any sink; needs "
        "metrics.latency.interval. Default: no check.",
    )
    fresh_s: float = Field(
        default=300.0, gt=0, description="Most seconds since the stream was last seen to be read."
    )


class Expectations(Model, Resolvable):
    """What a table that a bounded stage leaves shall hold; asset checks say whether it does."""

    unique: Sequence[str] | None = Field(
        default=None,
        description="Columns whose values together name one row. Default: those by which live queries join "
        "it, as a warning. An empty list: no check.",
    )
    ranges: Mapping[str, tuple[float | None, float | None]] = Field(
        default={}, description="Smallest and largest value by column, each may be null; nulls are allowed."
    )
    not_null: Sequence[str] = Field(default=(), description="Columns that hold no null.")
