"""Checks, before Spark and bounded stages are started, settings with which live queries could never run."""

from flowcore.metrics.reporting import require_interval
from flowcore.planner.plan import Plan
from flowcore.settings import Settings
from flowcore.signatures import require_control_key

__all__ = ["require_live_settings"]


def require_live_settings(plan: Plan, settings: Settings) -> None:
    """Check the settings that the live queries of a plan need; nothing without any.

    Raises:
        SettingsError: Listeners are set, but metrics.interval is 0.
        ConfigurationError: A topic is signed, and the key is missing, or too short.
    """
    if plan.live is None:
        return
    require_interval(settings)
    topics = (topic for query in plan.live.queries for topic in (*query.topics_read, *query.topics_written))
    require_control_key(settings, (topic.name for topic in topics if topic.signed))
