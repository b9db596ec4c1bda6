"""Objectives: does a flow's stream hold what it shall?

Pure: a look at the run and the time are passed in, verdicts are returned.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flowcore.dagster.attributes import Objectives
from flowcore.metrics.health import show_seconds
from flowcore.metrics.progress import FlowProgress, QueryProgress

__all__ = ["ObjectiveResult", "judge", "judged"]


@dataclass(frozen=True, slots=True)
class ObjectiveResult:
    """Whether one objective is held.

    Attributes:
        name: The objective's.
        passed: It is held.
        found: What was found, in the unit of the limit; None if nothing is known.
        limit: The most that is allowed.
        words: Both, for a person.
    """

    name: str
    passed: bool
    found: float | None
    limit: float
    words: str


def judged(objectives: Objectives) -> dict[str, str]:
    """What each verdict says, by its name."""
    found = {
        "late_share": f"At most {objectives.late_share:.2%} of what a query read came too late.",
        "dead_letter_share": f"At most {objectives.dead_letter_share:.2%} of what a query read was refused.",
        "fresh": f"The stream was seen to be read in the last {show_seconds(objectives.fresh_s)}.",
    }
    if objectives.latency_p99_ms is not None:
        found["latency"] = f"99 of 100 latency markers took at most {objectives.latency_p99_ms:g} ms."
    return found


def judge(last: FlowProgress | None, now_ms: int, objectives: Objectives) -> list[ObjectiveResult]:
    """The verdicts of `judged`.

    Args:
        last: The last look at the run, None if there never was one.
        now_ms: The time, on a clock that agrees with the run's.
        objectives: What shall be held.
    """
    verdicts = [
        _share("late_share", last, lambda query: query.late + query.dropped, objectives.late_share),
        _share("dead_letter_share", last, lambda query: query.dead_letters, objectives.dead_letter_share),
        _fresh(last, now_ms, objectives.fresh_s),
    ]
    if objectives.latency_p99_ms is not None:
        verdicts.append(_latency(last, objectives.latency_p99_ms))
    return verdicts


def _share(
    name: str, last: FlowProgress | None, count: Callable[[QueryProgress], int], limit: float
) -> ObjectiveResult:
    queries = [query for query in last.queries if query.rows_in or count(query)] if last else []
    if not queries:
        return ObjectiveResult(name, True, None, limit, "nothing was read")
    # What is refused may be told before what is read.
    worst = max(queries, key=lambda query: count(query) / max(query.rows_in, count(query)))
    found = count(worst) / max(worst.rows_in, count(worst))
    words = f"{count(worst):,} of {worst.rows_in:,} records of query {worst.name!r} ({found:.3%})"
    return ObjectiveResult(name, found <= limit, found, limit, words)


def _fresh(last: FlowProgress | None, now_ms: int, limit_s: float) -> ObjectiveResult:
    if last is None:
        return ObjectiveResult("fresh", False, None, limit_s, "the stream was never read")
    ago_s = max(now_ms - last.time_ms, 0) / 1000
    how = {"ended": ", when it ended", "failed": f", when it failed: {last.error}"}.get(last.state, "")
    passed = ago_s <= limit_s and last.state != "failed"
    return ObjectiveResult("fresh", passed, ago_s, limit_s, f"last seen {show_seconds(ago_s)} ago{how}")


def _latency(last: FlowProgress | None, limit_ms: float) -> ObjectiveResult:
    found = [one for one in last.latencies if one.p99_ms is not None] if last else []
    if not found:
        return ObjectiveResult("latency", True, None, limit_ms, "no latency marker came in the last minute")
    worst = max(found, key=lambda one: one.p99_ms or 0.0)
    p99_ms = worst.p99_ms or 0.0
    words = f"99 of 100 markers from {worst.source} to {worst.sink} took at most {p99_ms:g} ms"
    return ObjectiveResult("latency", p99_ms <= limit_ms, p99_ms, limit_ms, words)
