"""Find out whether the rows of a stream are final, or replace and delete earlier rows."""

from collections.abc import Sequence
from dataclasses import dataclass

from flowcore.api.checks import refuse
from flowcore.api.connectors import RECORD_ID_HEADER
from flowcore.api.decisions import Decision
from flowcore.api.operators import (
    Apply,
    Deduplicate,
    DistinctAggregate,
    Drop,
    EventTimeSort,
    Filter,
    FlatMap,
    Join,
    JoinRegular,
    Map,
    MapBatches,
    Operator,
    PythonOperator,
    Ranked,
    Read,
    RetractingAggregate,
    RetractingTopN,
    Select,
    Union,
    Where,
    Window,
    WithColumns,
    WithEventTime,
    Write,
)
from flowcore.api.resolution import rename_selected
from flowcore.api.retraction import IS_DELETED
from flowcore.api.stateful import Reduce

__all__ = [
    "Replaced",
    "decide_changes",
    "explain_replaced",
    "find_deleted",
    "find_origin",
    "find_replacing",
    "replaces_by_key",
    "require_final",
    "require_lasting_ranks",
    "require_replaced",
]

_ONE_BY_ONE = (Select, WithColumns, Drop, Map, WithEventTime)
"""They make one row of each."""
_PASSING = (
    *_ONE_BY_ONE, Where, Filter, FlatMap, MapBatches, Join, Apply, Deduplicate, EventTimeSort, Union,
)  # fmt: skip
"""They make rows of single rows, or pass them on."""


@dataclass(frozen=True, slots=True)
class Replaced:
    """How the rows of a stream replace each other.

    Attributes:
        key: The columns of which the last row counts.
        deleted: The column that is true where a row deletes its key, if there is one.
    """

    key: tuple[str, ...]
    deleted: str | None


def find_replacing(node: Operator) -> Operator | None:
    """The operator upstream whose later rows replace its earlier ones; None if the rows are final."""
    if isinstance(node, _PASSING):
        for found in filter(None, map(find_replacing, _find_senders(node))):
            return found
    if isinstance(node, Window) and node.fires_again:
        return node
    if isinstance(node, Read) and node.written_by is not None and find_replacing(node.written_by.inputs[0]):
        return node
    return node if node.updating and not node.bounded else None


def _find_first(node: Operator) -> Operator | None:
    """The operator whose rows replace each other first, also upstream of cuts; None if the rows are final."""
    found = find_replacing(node)
    while isinstance(found, Read) and found.written_by is not None:
        found = find_replacing(found.written_by.inputs[0])
    return found


def find_deleted(node: Operator) -> str | None:
    """The column that is true where a row deletes its key; None if no row does, or the column is lost."""
    match node:
        case DistinctAggregate():
            return None
        case RetractingAggregate():
            return IS_DELETED if node.by else None
        case RetractingTopN() | JoinRegular(updating=True):
            return IS_DELETED
        case Read(written_by=None, deleted=deleted):
            return deleted
        case Read(written_by=cut) if cut is not None:
            found = find_deleted(cut.inputs[0])
        case Select() if found := find_deleted(node.inputs[0]):
            return rename_selected(node.expressions).get(found.lower())
        case WithColumns(expressions=expressions):
            found = find_deleted(node.inputs[0])
            new = {name.lower() for name, _ in expressions}
            found = None if found is None or found.lower() in new else found
        case PythonOperator():
            found = find_deleted(node.inputs[0])
            passed = {name.lower() for name in node.passed_columns}
            found = None if found is None or found.lower() not in passed else found
        case Drop() | Join() | Where() | WithEventTime() | Deduplicate():
            found = find_deleted(node.inputs[0])
        case _:
            return None
    return found if found in node.columns else None


def decide_changes(node: Operator) -> Decision:
    """The decision in a plan about the rows of a stream: ``"append"``, or ``"updating by"`` a key."""
    replacing = find_replacing(node)
    if replacing is None:
        return Decision("append", ("no later row replaces one of its rows",))
    why = "a later row of a key replaces the earlier one"
    if replacing is not node:
        why = f"so are the rows of {replacing.name}"
    if node.key is None:
        return Decision("updating", (why, "its columns do not say which row replaces which"))
    deleted = find_deleted(node)
    deletes = () if deleted is None else (f"{deleted} is true where a key is deleted",)
    return Decision(f"updating by {', '.join(node.key) or 'nothing'}", (why, *deletes))


def explain_replaced(node: Operator) -> Decision | None:
    """What an operator does with rows that replace earlier ones, if it does not take these back."""
    replacing = next(filter(None, map(find_replacing, node.inputs[:1])), None)
    if replacing is None:
        return None
    if isinstance(node, Write):
        return _explain_added(node, replacing)
    if isinstance(node, Window | Reduce):
        return Decision(
            f"counts each replacement of {replacing.name}",
            ("it does not take back the row that is replaced",),
            ("use aggregate(by=...), which does",),
        )
    match node:
        case Where() | Filter():
            dropped = "that does not fit is dropped, so that the earlier row of its key stays"
            change = "write the rows with deleted= instead"
        case Join(how=how) if how != "left":
            partner = "with a" if how == "anti" else "without a"
            dropped = f"{partner} partner is dropped, so that the earlier row of its key stays"
            change = "join them with how='left', and write those rows with deleted= instead"
        case FlatMap() | Select(repeats_records=True) | WithColumns(repeats_records=True):
            dropped = "may give fewer rows than the earlier one of its key, so that some of those stay"
            change = "make a row for each of them, and write it with deleted= instead"
        case _:
            return None
    return Decision(
        f"does not retract rows of {replacing.name}", (f"a row {dropped} in the output",), (change,)
    )


def _explain_added(sink: Write, replacing: Operator) -> Decision | None:
    """What a sink does with rows that replace earlier ones, if its rows cannot replace each other.

    Only those of windows reach such a sink, since the columns of a window can say which firing is the last.
    """
    if sink.is_cut or (sink.topic is not None and sink.key is not None):
        return None
    key = ", ".join(replacing.key or ())
    what = "rows of files do" if sink.topic is None else "records without a key do"
    return Decision(
        f"adds a row for each firing of {replacing.name}",
        (f"{what} not replace earlier ones",),
        (f"write to a KafkaTopic with key={key}, or let readers take the last firing",),
    )


def replaces_by_key(node: Operator) -> bool:
    """Whether rows are those of a source that replace each other by their Kafka key."""
    found = find_replacing(node)
    return isinstance(found, Read) and found.row_key is not None


def find_origin(node: Operator) -> str:
    """The operator that the replacing rows are made from, which errors propose to use instead."""
    found = find_replacing(node)
    if found is not None and replaces_by_key(node):
        return f"what the writer of {found.name!r} makes them from, or read its topic as a table with until="
    if isinstance(found, Window) and not found.updating:
        return f"what it is made from, or leave allowed_lateness and trigger of {found.name!r} out"
    return "the records that it is made from"


def require_final(node: Operator, name: str, instead: str) -> None:
    """Check that no row of a stream deletes an earlier one, which would still be counted, as its deletion.

    Args:
        instead: The way out that the error names.
    """
    found = _find_first(node)
    if found is not None and (replaces_by_key(found) or find_deleted(found) is not None):
        refuse(
            f"operator {name!r}: rows of {found.name!r} replace and delete earlier ones by "
            f"{', '.join(found.key or ())}: those would still be counted; {instead}"
        )


def require_lasting_ranks(node: Operator, name: str, *, expires: bool = True) -> None:
    """Check that no rank stays counted when its key is forgotten, by an operator without a time to live.

    Args:
        expires: With a time to live it takes rows back at its end.
    """
    ranked = _find_first(node)
    if isinstance(ranked, Ranked) and ranked.ttl_ms is not None and ranked.n > 1:
        too = f"pass ttl= to {name!r}, too, which takes back what is not replaced for that time, or "
        refuse(
            f"operator {name!r}: {ranked.name!r} forgets a key after its ttl= without output, and the next "
            "record of the key has rank 1: rows of its other ranks would be counted for ever; "
            f"{too if expires else ''}leave ttl= of {ranked.name!r} out"
        )


def require_replaced(node: Operator, name: str, instead: str) -> Replaced:
    """Check that no row that replaces or deletes another one is dropped on its way or loses its key.

    Args:
        instead: The way out that the error names.
    """
    replacing = _find_first(node)
    if replacing is None:
        raise AssertionError(node)
    way = _find_way(node, replacing)
    for each in way:
        if not _is_one_by_one(each):
            refuse(
                f"operator {name!r}: rows of {replacing.name!r} replace earlier ones, and {each.name!r} may "
                f"drop or repeat some: what they replace would still be counted; "
                f"{_suggest_way(each, replacing, name, instead)}"
            )
    if isinstance(replacing, Window) and replacing.config.assigner.merging:
        refuse(
            f"operator {name!r}: a late record merges sessions of {replacing.name!r}, and a merged session "
            "does not replace those that it is made of: both would be counted; leave allowed_lateness and "
            f"trigger of {replacing.name!r} out"
        )
    key = ", ".join(replacing.key or ())
    if node.key is None:
        refuse(
            f"operator {name!r}: rows of {replacing.name!r} replace earlier ones by {key}, and {node.name!r} "
            "does not have all of these columns: it would not be known which row is replaced; select them too"
        )
    deleted = find_deleted(node)
    lost = deleted is None and next(filter(None, map(find_deleted, [*way, replacing])), None)
    if lost:
        loses = [each for each in way if find_deleted(each) is None][-1]
        why, change = "does not have this column", "select it too"
        if isinstance(loses, PythonOperator) and lost in loses.columns:
            why, change = "may change this column", f"declare passes=[{lost!r}] on it, if it does not"
        refuse(
            f"operator {name!r}: rows of {replacing.name!r} say in {lost} that they delete a key, and "
            f"{loses.name!r} {why}: what is deleted would still be counted; {change}"
        )
    return Replaced(node.key, deleted)


def _suggest_way(between: Operator, replacing: Operator, name: str, instead: str) -> str:
    """What to do about an operator between one whose rows replace each other and one that takes them back.

    Args:
        name: The latter.
        instead: What to do about a condition.
    """
    found = []
    match between:
        case Where() | Filter():
            found.append(instead)
        case Union():
            return f"put {name!r} before {between.name!r}, on each of its inputs"
        case Join():
            found.append("join with how='left'")
        case FlatMap() | MapBatches():
            found.append(f"use map with passes= in place of {between.name!r}")
    read = between.columns_read(())
    if replacing.inputs and read.issubset(map(str.lower, replacing.inputs[0].columns)):
        found.append(f"put {between.name!r} before {replacing.name!r}")
    return ", or ".join(found) or f"leave {between.name!r} out"


def _is_one_by_one(node: Operator) -> bool:
    match node:
        case Join(how=how):
            return how == "left"
        case Deduplicate(by=by):
            return by == (RECORD_ID_HEADER,)  # it drops repeats of what has passed
        case Read():
            return True  # a cut
        case _:
            return isinstance(node, _ONE_BY_ONE) and not node.repeats_records


def _find_way(node: Operator, upstream: Operator) -> Sequence[Operator]:
    """The operators from one operator up to another one, without the latter."""
    way = []
    while node is not upstream:
        way.append(node)
        node = next(filter(find_replacing, _find_senders(node)))
    return way


def _find_senders(node: Operator) -> Sequence[Operator]:
    """The inputs of which an operator passes rows on; of a cut that which it is written from."""
    if isinstance(node, Read) and node.written_by is not None:
        return node.written_by.inputs
    return node.inputs if isinstance(node, Union) else node.inputs[:1]
