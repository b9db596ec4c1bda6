"""Checks of a declaration: names, joins, unions, attributes and intervals.

Each raises `PlanError` with the operator's name.
"""

import logging
import re
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from types import EllipsisType
from typing import NoReturn

from flowcore.api.operators import Operator
from flowcore.durations import MILLISECOND, show_given, show_ms
from flowcore.errors import PlanError

__all__ = [
    "MissingMethodError",
    "flush_interval_ms",
    "refuse",
    "require_aggregate_name",
    "require_alike",
    "require_attributes",
    "require_columns",
    "require_distinct",
    "require_flushable",
    "require_join",
    "require_name",
    "require_ttl",
    "require_unambiguous",
]

_log = logging.getLogger(__name__)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


def refuse(message: str) -> NoReturn:
    raise PlanError(message)


class MissingMethodError(PlanError, AttributeError):
    """A stream has no such method, and has what is meant under another name."""


def _names(name: object) -> bool:
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def require_name(kind: str, name: str) -> None:
    """Check that a name can be part of a path, a topic and an asset key."""
    if not _names(name):
        refuse(
            f"{kind} name {name!r} cannot name a folder or a checkpoint: use letters, digits, '_', "
            "'-' and '.', beginning with a letter"
        )


def require_aggregate_name(name: object) -> None:
    """Check that ``name=``, beside keywords that are aggregates, is not meant as one of them."""
    if name is not None and not _names(name):
        refuse(
            f"name={name!r} would compute nothing: name= is the operator's name; for a column called name "
            f"compute value={name!r}, and write select(..., 'value as name') after it"
        )


def require_columns(name: object, columns: Sequence[str], expressions: Mapping[str, str]) -> None:
    """Check that keywords make columns, and that ``name=`` beside them is not meant as a column.

    Args:
        columns: The columns of the input.
        expressions: The keywords that make columns.
    """
    if name is not None and (not _names(name) or (name in columns and name not in expressions)):
        refuse(
            f"with_columns(name={name!r}) makes no column: name= is the operator's name; for a column called "
            f"name write select('*', '{name} as name')"
        )
    if not expressions:
        refuse("with_columns() makes no column: it has no use; pass for instance twice='price * 2'")


def require_distinct(operator: str, columns: Sequence[str], change: str = "") -> None:
    """Check that no two columns have one name; Spark compares names without case.

    Args:
        change: What to do; by default to rename a column where it is selected.
    """
    lower = [column.lower() for column in columns]
    twice = sorted({column for column in columns if lower.count(column.lower()) > 1})
    if twice:
        change = change or f"rename one with '{twice[0]} as another'"
        refuse(
            f"operator {operator!r} would have the output column {twice[0]!r} twice: downstream operators "
            f"could not say which one they mean; {change}"
        )


def require_ttl(name: str, ttl: timedelta | EllipsisType | None) -> timedelta | None:
    """The time to live of a join of two unbounded streams, which must be written."""
    if isinstance(ttl, EllipsisType):
        refuse(
            f"operator {name!r} joins two unbounded streams without ttl=: each record would be kept for ever "
            "for partners that may come; pass ttl=timedelta(hours=1), or ttl=None if it is kept for ever, or "
            "use join_interval"
        )
    return ttl


def require_join(
    left: Operator, right: Operator, name: str, how: str, ttl: timedelta | EllipsisType | None
) -> None:
    """Check that the right side is bounded, and that the kind of join can run over the left side."""
    if not right.bounded:
        refuse(
            f"operator {name!r} needs a bounded input, and {right.name!r} is unbounded: it would wait for an "
            f"end that never comes; put the unbounded side left ({right.name}.join({left.name}, ...)), or "
            "give its topic until="
        )
    if ttl is not ...:
        refuse(
            f"operator {name!r}: ttl={show_given(ttl)}, and {right.name!r} is bounded: its rows are read "
            "once, and no others come; leave ttl= out"
        )
    allowed = ("inner", "left", "semi", "anti") + (("right", "full") if left.bounded else ())
    if how not in allowed:
        why = (
            "rows of the right side without a partner are only known when the unbounded left side ends"
            if how in ("right", "full")
            else "there is no such join"
        )
        refuse(f"operator {name!r}: how={how!r}: {why}; pass one of {', '.join(allowed)}")


def require_unambiguous(
    left: Operator,
    right: Operator,
    name: str,
    pairs: Sequence[tuple[str, str]],
    hidden: Collection[str] = (),
) -> None:
    """Check that both sides of a join share only the columns joined on, and those that are hidden."""
    used = {column.lower() for _, column in pairs}.union(hidden)
    known = {column.lower() for column in left.columns}
    both = [c for c in right.columns if c.lower() in known and c.lower() not in used]
    if both:
        refuse(
            f"operator {name!r}: both inputs {left.name!r} and {right.name!r} have the column {both[0]!r}, "
            "which is not joined on: downstream operators could not say which one they mean; rename it "
            f"before the join with select(..., '{both[0]} as {right.name}_{both[0]}'), or add it to on="
        )


def require_alike(inputs: Sequence[Operator], name: str, *, mixed: bool = False) -> None:
    """Check that inputs have the same columns and, unless ``mixed``, are all bounded or all unbounded."""
    first = inputs[0]
    for other in inputs[1:]:
        mine, theirs = ({c.lower() for c in node.columns} for node in (first, other))
        if mine != theirs:
            refuse(
                f"operator {name!r}: {first.name!r} and {other.name!r} differ in the columns "
                f"{', '.join(sorted(mine ^ theirs))}: rows of one would not fit the other; "
                "bring both to the same columns with select"
            )
        if first.bounded != other.bounded and not mixed:
            ends, never = (first, other) if first.bounded else (other, first)
            refuse(
                f"operator {name!r} mixes the bounded {ends.name!r} with the unbounded {never.name!r}: Spark "
                "runs one as a batch and the other as a stream; join the bounded one, or pass "
                f"{ends.name}.then({never.name}) if it is its history"
            )
        if first.updating or other.updating:
            node = first if first.updating else other
            instead = (
                "unite the inputs before they are aggregated"
                if node.inputs
                else f"read the topic of {node.name!r} as a table with until=, or without updating_by= if "
                "each record counts"
            )
            refuse(
                f"operator {name!r}: records of {node.name!r} replace earlier ones and would be counted "
                f"again in a union; {instead}"
            )


def require_attributes(node: Operator) -> None:
    """Check that the attributes can be kept, and log those for which a default is assumed."""
    attributes = node.attributes()
    if attributes.output_only_at_end and not node.bounded:
        source = node.live_sources[0]
        refuse(
            f"operator {node.name!r} declares output_only_at_end=True, and its source {source.name!r} is "
            "unbounded: it would wait for an end that never comes; give the topic until=, or drop the "
            "attribute"
        )
    obstacle = node.checkpoint_obstacle() if attributes.output_on_checkpoint and not node.bounded else None
    if obstacle is not None:
        refuse(
            f"operator {node.name!r} declares output_on_checkpoint=True, and {obstacle.why}: it would emit "
            "nothing for a checkpoint; drop the attribute, or let a flush buffer keep its output "
            "(output_idempotent, a key, and flush=)"
        )
    for name in node.undeclared_attributes():
        _log.debug(
            "operator %r does not declare %s: %s is assumed, which is always safe",
            node.name, name, getattr(attributes, name),
        )  # fmt: skip


def flush_interval_ms(operator: str, flush: timedelta | None) -> int | None:
    """Convert the interval that was declared with an operator to milliseconds.

    Raises:
        PlanError: The interval is not a length of time, is negative, or has a part of a millisecond.

    Source: FLIP-365, Introduce flush interval to adjust the interval of emitting results.
    """
    if flush is None:
        return None
    if not isinstance(flush, timedelta) or flush < timedelta(0) or flush % MILLISECOND:
        refuse(
            f"operator {operator!r}: flush={show_given(flush)} is not a whole number of milliseconds from 0 "
            "up: its output could not be buffered that long; pass for instance timedelta(minutes=2), or "
            "timedelta(0) to buffer nothing"
        )
    return flush // MILLISECOND


def ttl_ms(operator: str, ttl: timedelta | None) -> int | None:
    """Convert a time to live that was declared with an operator to milliseconds.

    Raises:
        PlanError: The time to live is not a length of time, is not positive, or has a part of a millisecond.
    """
    if ttl is None:
        return None
    if not isinstance(ttl, timedelta) or ttl < MILLISECOND or ttl % MILLISECOND:
        refuse(
            f"operator {operator!r}: ttl={show_given(ttl)} is not a positive number of whole milliseconds: "
            "state would be removed at once; pass for instance timedelta(hours=1)"
        )
    return ttl // MILLISECOND


def require_flushable(node: Operator) -> None:
    """Check that an operator with an interval of its own can be buffered.

    Raises:
        PlanError: The operator cannot be buffered.
    """
    if not node.flush_ms:
        return
    flush = show_ms(node.flush_ms)
    if node.bounded:
        refuse(
            f"operator {node.name!r}: flush={flush}, and its input is bounded: it emits once, at the end of "
            "its input, so that the interval would have no effect; leave flush out"
        )
    found = node.flush_obstacle()
    if found is not None:
        refuse(
            f"operator {node.name!r}: flush={flush}, and {found.why}: results that nothing replaces would "
            f"be lost; {f'{found.change}, or ' if found.change else ''}leave flush out"
        )
