"""Attributes that a user adds to a flow's plan, in Python or in the YAML of a component."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import dagster as dg
from pydantic import Field, field_validator

from flowcore.api.operators import Operator
from flowcore.dagster.metadata import plan_metadata
from flowcore.dagster.names import identifier
from flowcore.dagster.restarts import RestartPolicy
from flowcore.escaping import markdown_code
from flowcore.planner.plan import Plan
from flowcore.planner.rules.fingerprint import fingerprint_operators

__all__ = ["AssetAttributes", "Automation", "Expectations", "Objectives"]


class AssetAttributes(dg.Model, dg.Resolvable):
    """Attributes of all assets of a flow."""

    owners: Sequence[str] = Field(default=(), description="E-mail addresses, or team:name.")
    group: str | None = Field(default=None, description="Group of the assets. Default: the flow's name.")
    tags: Mapping[str, str] = Field(default={}, description="Tags of every asset of the flow.")
    descriptions: Mapping[str, str] = Field(
        default={}, description="Markdown by the name of a table or sink; `live` names the live queries."
    )

    def spec(
        self,
        plan: Plan,
        key: dg.AssetKey,
        name: str,
        operators: Iterable[Operator],
        *,
        deps: Iterable[dg.AssetKey],
        kind: str,
        **more: Any,
    ) -> dg.AssetSpec:
        """The spec of the table or sink with this name, or of the live queries (``"live"``)."""
        what = "Live queries" if name == "live" else markdown_code(name)
        default = f"{what} of flow {markdown_code(plan.flow)}"
        return dg.AssetSpec(
            key,
            deps=list(deps),
            description=self.descriptions.get(name, default),
            metadata=plan_metadata(plan),
            kinds={"spark", kind},
            group_name=self.group or identifier(plan.flow),
            owners=self.owners,
            tags=self.tags,
            code_version=fingerprint_operators(operators)[:12],
            **more,
        )


class Automation(dg.Model, dg.Resolvable):
    """When a flow runs automatically. Everything that launches a run is off at first, except restarts."""

    refresh_cron: str = Field(default="0 3 * * *", description="When the bounded stages run again.")
    slice_cron: str = Field(default="*/5 * * * *", description="When the live queries catch up and end.")
    time_zone: str = Field(
        default="UTC", description="Time zone of both schedules, such as Europe/Berlin: of the IANA database."
    )
    lag_records: int = Field(
        default=100_000, gt=0, description="Unread records at which the lag sensor launches a run."
    )
    lag_job: Literal["slice", "live"] = Field(
        default="slice",
        description="The job that the lag sensor launches; live: also after a person has terminated it.",
    )
    retries: int = Field(
        default=2, ge=0, description="How often Dagster retries at once a run whose process was killed."
    )
    restarts: int = Field(
        default=8, ge=0, description="Consecutive restarts of a crashed live run before it needs a person."
    )
    first_wait_s: float = Field(
        default=5.0, ge=0, description="Seconds before the first restart; each further restart doubles them."
    )
    longest_wait_s: float = Field(
        default=300.0, ge=0, description="Longest wait before a restart, in seconds."
    )
    stable_s: float = Field(
        default=600.0, gt=0, description="A live run that lasted this many seconds resets the restart count."
    )
    start_s: float = Field(
        default=300.0,
        ge=120,
        description="Seconds after its start at which a run without a heartbeat is lost.",
    )
    silent_s: float = Field(
        default=120.0, ge=120, description="Seconds after its last heartbeat at which a run is lost."
    )

    keep_runs_days: float = Field(
        default=90.0,
        ge=0,
        description="Days for which Dagster keeps live runs and slices that have ended, with their events.",
    )

    @field_validator("time_zone")
    @classmethod
    def _known_zone(cls, name: str) -> str:
        try:
            ZoneInfo(name)
        except (ValueError, OSError, ZoneInfoNotFoundError):
            msg = (
                f"{name!r} is not a time zone of the IANA database: schedules would not run when they "
                "should; pass a name such as Europe/Berlin or America/New_York, or UTC"
            )
            raise ValueError(msg) from None
        return name

    @property
    def restart_policy(self) -> RestartPolicy:
        """When a crashed live run is launched again."""
        same = {each.name: getattr(self, each.name) for each in fields(RestartPolicy) if each.name != "limit"}
        return RestartPolicy(limit=self.restarts, **same)


class Objectives(dg.Model, dg.Resolvable):
    """Service level objectives of a flow's stream; asset checks evaluate them."""

    late_share: float = Field(
        default=0.01, ge=0, le=1, description="Largest share of a query's records that may be late."
    )
    dead_letter_share: float = Field(
        default=0.001, ge=0, le=1, description="Largest share of a query's records that may be dead letters."
    )
    latency_p99_ms: float | None = Field(
        default=None,
        gt=0,
        description="Largest 99th percentile of marker latency from any source to any sink; needs "
        "metrics.latency.interval. Default: no check.",
    )
    fresh_s: float = Field(
        default=300.0, gt=0, description="Largest number of seconds since the run last reported progress."
    )


class Expectations(dg.Model, dg.Resolvable):
    """Expectations of a table that a bounded stage writes; asset checks evaluate them."""

    unique: Sequence[str] | None = Field(
        default=None,
        description="Columns that together identify a row. Default: the join keys of the live queries that "
        "join the table, as a warning. An empty list: no check.",
    )
    ranges: Mapping[str, tuple[float | None, float | None]] = Field(
        default={},
        description="Smallest and largest value by column, each may be null. Null values are allowed.",
    )
    not_null: Sequence[str] = Field(default=(), description="Columns without null values.")
