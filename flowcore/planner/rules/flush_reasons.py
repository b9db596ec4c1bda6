"""The reasons that a plan gives for buffered output, and for output that is not buffered."""

from flowcore.api.decisions import Decision, Obstacle
from flowcore.api.operators import Operator, PythonOperator
from flowcore.durations import MILLISECOND, show_ms
from flowcore.flush.config import BufferOutput
from flowcore.planner.model import Flush, LiveQuery
from flowcore.planner.rules.flush_chains import Arrival
from flowcore.settings import Settings

__all__ = [
    "explain_arrival",
    "explain_interval",
    "explain_key_groups",
    "explain_off",
    "explain_trigger",
    "explain_upstream",
    "interval_of",
]

_MAX_INTERVAL = "execution.flush.max-interval"


def interval_of(node: Operator, settings: Settings) -> int:
    """How long an operator's output may be buffered, in milliseconds; 0 for not at all."""
    return settings.flush_interval // MILLISECOND if node.flush_ms is None else node.flush_ms


def explain_interval(node: Operator, settings: Settings) -> str:
    """Where an operator's interval is set."""
    length = show_ms(interval_of(node, settings))
    return (
        f"{_MAX_INTERVAL} is {length}"
        if node.flush_ms is None
        else f"flush={length} is declared with {node.name}"
    )


def explain_off(node: Operator, query: LiveQuery, settings: Settings) -> Decision:
    """Why output is not buffered, and what would change that."""
    found = node.flush_obstacle()
    if found is not None and not found.change:
        return Decision("off", (found.why,))
    reasons, change = [], []
    if not interval_of(node, settings):
        reasons.append("flush=0 is declared with it" if node.flush_ms == 0 else "no flush interval is set")
        change.append(f"set {_MAX_INTERVAL}, or flush= on {node.name}")
    if found is not None:
        reasons.append(found.why)
        change.append(found.change)
    elif node.emits_once_a_batch and query.mode.value != "realtime":
        reasons.append("the query's own trigger already gives one output for each key and batch")
    return Decision("off", tuple(reasons), tuple(change))


def explain_upstream(node: Operator, first: Flush, settings: Settings, obstacle: Obstacle | None) -> Decision:
    """Output that is emitted with the flush of an upstream operator; ``obstacle`` to a buffer of its own."""
    name, wanted_ms = first.operator.name, interval_of(node, settings)
    reasons = [
        explain_interval(node, settings),
        f"{name} emits its input {first.decision.value}",
        "one record gives at most one of the same key, so it emits once an interval too",
    ]
    if obstacle is None or first.config is None or (first.config.interval_ms or 0) >= wanted_ms:
        return Decision(f"with {name}", tuple(reasons))
    reasons.append(f"a longer interval would need a buffer of its own; {obstacle.why}")
    return Decision(f"with {name}", tuple(reasons), (f"give {name} flush={show_ms(wanted_ms)}",))


def explain_trigger(node: Operator, query: LiveQuery, config: BufferOutput, settings: Settings) -> Decision:
    """Output for which batches as far apart as the interval are enough."""
    reasons = [explain_interval(node, settings), _explain_key(node)]
    once = f"{node.name} is Spark's own aggregate, which emits once for each key and batch"
    if query.mode.value == "slice":
        return Decision("once, with the slice", (*reasons, once, "a slice is one batch"))
    trigger_ms = settings.trigger_interval // MILLISECOND
    if trigger_ms >= (config.interval_ms or 0):
        own = f"execution.trigger-interval is {show_ms(trigger_ms)}, so batches are that far apart anyway"
        return Decision(f"every {show_ms(trigger_ms)}, by the trigger", (*reasons, once, own))
    reasons += [f"{once}: batches as far apart as the interval are enough"]
    reasons += ["input waits in its topic meanwhile, and a backlog is one batch"]
    return Decision(f"every {show_ms(config.interval_ms)}, by the trigger", tuple(reasons))


def explain_arrival(node: Operator, arriving: Arrival, settings: Settings) -> Decision:
    """Output of an operator whose input has been buffered already."""
    name = arriving.after.name if arriving.after else f"topic {arriving.topic}"
    reasons = (
        explain_interval(node, settings),
        f"topic {arriving.topic} fills once in {show_ms(arriving.interval_ms)}: results leave no more often",
        "another interval would only delay them; what belongs to one flush is gathered for a tenth of it",
    )
    return Decision(f"{show_ms(arriving.gathered_ms)} after {name}, by the trigger", reasons)


def explain_key_groups(
    node: Operator, query: LiveQuery, config: BufferOutput, settings: Settings, first: Flush | None
) -> Decision:
    """Output that a buffer keeps over batches; ``first`` is the buffer upstream with which it is flushed."""
    backlog_ms = config.backlog_interval_ms
    setting = f"({_MAX_INTERVAL}-during-backlog is {show_ms(backlog_ms)})"
    reasons = [
        explain_interval(node, settings),
        _explain_key(node),
        "its function keeps no record from batch to batch"
        if isinstance(node, PythonOperator)
        else "its input is processed at once, which moves its watermarks and timers",
        f"during backlog it emits when the backlog ends {setting}"
        if backlog_ms is None
        else f"during backlog it emits every {show_ms(backlog_ms)}, and when the backlog ends {setting}",
    ]
    if config.at_checkpoint:
        reasons.append("also at the end of each batch, as it declares output_on_checkpoint")
    if settings.flush_memory_only:
        reasons.append(
            f"execution.flush.memory-buffer-only is true: also when {settings.cache_entries:,} records wait "
            "(state.backend.cache.max-entries-num)"
        )
    if query.mode.value != "slice":
        if first is None:
            return Decision(f"every {show_ms(config.interval_ms)}, by key group", tuple(reasons))
        name = first.operator.name
        reasons.append(
            f"{name} emits its input {first.decision.value}: a control element follows each flush of "
            f"{name}, and what belongs to it is gathered for a tenth of the interval"
        )
        return Decision(f"{show_ms(config.gather_ms)} after {name}, by key group", tuple(reasons))
    when = "once, at" if backlog_ms is None else f"every {show_ms(backlog_ms)} and at"
    return Decision(f"{when} the slice's end, by key group", (*reasons, "all that a slice reads is backlog"))


def _explain_key(node: Operator) -> str:
    if node.buffer_key:
        return "a later result of a key replaces the earlier one"
    return "a later result replaces the earlier one, as all are made in one place"
