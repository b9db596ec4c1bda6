"""Which rows of a stream are final, and which replace and delete earlier ones."""

from flowcore.api.checks import refuse
from flowcore.api.decisions import Decision
from flowcore.api.operators import (
    Apply,
    Deduplicate,
    DistinctAggregate,
    Drop,
    Filter,
    FlatMap,
    Join,
    JoinRegular,
    Map,
    MapBatches,
    Operator,
    Read,
    RetractingAggregate,
    Select,
    Where,
    Window,
    WithColumns,
    WithEventTime,
)
from flowcore.api.resolution import rename_selected
from flowcore.api.retraction import IS_DELETED

__all__ = ["ONE_BY_ONE", "decide_changes", "find_deleted", "find_origin", "find_replacing", "require_final"]

ONE_BY_ONE = (Select, WithColumns, Drop, Map, WithEventTime)
"""They make one row of each."""
_PASSING = (*ONE_BY_ONE, Where, Filter, FlatMap, MapBatches, Join, Apply, Deduplicate)
"""They make rows of single rows, or pass them on."""


def find_replacing(node: Operator) -> Operator | None:
    """The operator whose later rows replace its earlier ones, and of whose rows a stream is made.

    None if the rows of the stream are final.
    """
    if isinstance(node, _PASSING) and (found := find_replacing(node.inputs[0])):
        return found
    if isinstance(node, Window) and node.fires_again:
        return node
    if isinstance(node, Read) and node.written_by is not None and find_replacing(node.written_by.inputs[0]):
        return node
    return node if node.updating and not node.bounded else None


def find_deleted(node: Operator) -> str | None:
    """The column that is true where a row deletes its key; None if no row does, or the column is lost."""
    match node:
        case DistinctAggregate():
            return None
        case RetractingAggregate():
            return IS_DELETED if node.by else None
        case JoinRegular():
            return IS_DELETED if node.updating else None
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
        case Drop() | Join() | Where() | WithEventTime() | Deduplicate():
            found = find_deleted(node.inputs[0])
        case _:
            return None
    return found if found in node.columns else None


def decide_changes(node: Operator) -> Decision:
    """What a plan says of the rows of a stream: ``"append"``, or ``"updating by"`` a key."""
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


def find_origin(node: Operator) -> str:
    """What rows that replace earlier ones are made from, as errors say what to take instead of them."""
    found = find_replacing(node)
    if isinstance(found, Read) and found.row_key is not None:
        return f"what the writer of {found.name!r} makes them from, or read its topic as a table with until="
    return "the records that it is made from"


def require_final(node: Operator, name: str, instead: str) -> None:
    """Check that no source of a stream has rows that replace earlier ones, which would still be counted.

    Args:
        instead: What to do if one has.
    """
    found = find_replacing(node)
    if isinstance(found, Read) and found.row_key is not None:
        refuse(
            f"operator {name!r}: rows of {found.name!r} replace and delete earlier ones by "
            f"{', '.join(found.row_key)}: those would still be counted; {instead}"
        )
