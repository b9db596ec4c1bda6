"""When a live query is in backlog, and whether it then runs in another mode.

A blocking edge with pending records counts as a source in backlog. A query's records are backlog while any of
its inputs is in backlog (`flowcore.backlog`).
"""

from flowcore.api.decisions import Decision
from flowcore.backlog import CheckpointInterval, Thresholds
from flowcore.planner.model import LiveQuery, Mode
from flowcore.settings import Settings

__all__ = ["decide_backlog", "decide_catch_up", "read_backlog_interval", "read_thresholds"]

_MS = 1000


def read_thresholds(settings: Settings) -> Thresholds:
    """When a source is in backlog.

    Raises:
        ConfigurationError: ``backlog.leave`` is not below ``backlog.enter``.
    """
    return Thresholds(settings.backlog_enter, settings.backlog_leave)


def read_backlog_interval(settings: Settings) -> CheckpointInterval:
    """The time between checkpoints, in backlog and out of it.

    Raises:
        ConfigurationError: The interval in backlog is the shorter one.
    """
    backlog = settings.backlog_checkpoints
    return CheckpointInterval(
        round(settings.realtime_batch.total_seconds() * _MS),
        None if backlog is None else round(backlog.total_seconds() * _MS),
    )


def decide_backlog(query: LiveQuery, settings: Settings) -> Decision:
    """When a live query is in backlog."""
    pending = [node.name for node in query.results]
    lagging = ", ".join(node.name for node in query.sources)
    limits = read_thresholds(settings)
    reasons = [f"the edge from {name} is blocking: what is pending there is backlog" for name in pending]
    reasons.append(
        f"a partition of {lagging} has over {limits.enter:,} unread records (backlog.enter), until none has "
        f"over {limits.leave:,} (backlog.leave)"
    )
    until = f"until {', '.join(pending)} is committed, and " if pending else ""
    return Decision(f"{until}while {lagging} lags", tuple(reasons))


def decide_catch_up(query: LiveQuery, requested: Mode | None, settings: Settings) -> Decision:
    """Whether a live query leaves its mode while it is in backlog: ``"in micro-batches"`` or ``"no"``."""
    if requested is not None:
        return Decision("no", (f"mode {requested} was asked for",), ("run it with --mode auto",))
    if query.mode.value != "realtime":
        return Decision("no", ("it runs in micro-batches anyway, each of all that is there",))
    interval_ms = read_backlog_interval(settings).interval_ms_in(backlog=True)
    least = f" or what it reads in {interval_ms / _MS:g} s, if that is less" if interval_ms else ""
    limit = f"{settings.max_batch_records:,} records (execution.max-records-per-batch)"
    return Decision(
        "in micro-batches",
        ("they read a backlog faster than real-time mode", f"each has up to {limit}{least}"),
    )
