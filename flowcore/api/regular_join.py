"""Build regular joins of two unbounded streams: a changelog of each side that changes, and the join."""

from collections.abc import Mapping
from typing import Any

from flowcore.api.arrival_joins import ROW_ID
from flowcore.api.checks import refuse, require_distinct
from flowcore.api.operators import ChangelogNormalize, JoinRegular, MapBatches, Operator
from flowcore.api.retraction import CHANGE_COLUMN, IS_DELETED
from flowcore.api.updating_rows import find_deleted, find_replacing, require_lasting_ranks, require_replaced

__all__ = ["build_regular_join", "find_own_columns"]

_INSTEAD = "make the condition a column, for an aggregate of the join or for deleted= of its sink"


def find_own_columns(node: Operator) -> set[str]:
    """The columns of a side, in lower case, that say which row replaces or deletes which."""
    if find_replacing(node) is None:
        return set()
    deleted = find_deleted(node)
    return {*([ROW_ID] if node.key == (ROW_ID,) else []), *([deleted.lower()] if deleted else [])}


def build_regular_join(fields: Mapping[str, Any], ttl_ms: int | None) -> list[Operator]:
    """Build a regular join, preceded by the changelogs of the sides whose rows replace earlier rows.

    Args:
        fields: The fields of a join of two streams.
        ttl_ms: How long a record is kept; None for ever.

    Raises:
        PlanError: An operator upstream may drop a row that replaces an earlier one, the key of the rows is
            unknown, ranks are forgotten without output, or rows of a side have no id.
    """
    name, sides = fields["name"], fields["inputs"]
    changes = [
        _build_changelog(each, f"{name}.{side}.changes", name, ttl_ms) if find_replacing(each) else None
        for side, each in zip(("left", "right"), sides, strict=True)
    ]
    inputs = tuple(new or old for new, old in zip(changes, sides, strict=True))
    found = {**fields, "inputs": inputs, "ttl_ms": ttl_ms}
    if any(changes) or fields["how"] not in ("inner", "semi"):
        for side in (old for new, old in zip(changes, sides, strict=True) if new is None):
            _require_ids(side, name, final=not any(changes))
        found |= {"columns": (*fields["columns"], ROW_ID, IS_DELETED), "key": (ROW_ID,), "updating": True}
    require_distinct(name, found["columns"])
    return [*filter(None, changes), JoinRegular(**found)]


def _build_changelog(node: Operator, name: str, join: str, ttl_ms: int | None) -> ChangelogNormalize:
    replaced = require_replaced(node, join, _INSTEAD)
    require_lasting_ranks(node, join, expires=False)
    return ChangelogNormalize(
        name=name, inputs=(node,), columns=(*node.columns, CHANGE_COLUMN), bounded=False, by=replaced.key,
        deleted=replaced.deleted, ttl_ms=ttl_ms, retracts_expired=False,
    )  # fmt: skip


def _require_ids(side: Operator, name: str, *, final: bool) -> None:
    """Check that the records of a side have ids, which name the rows that are deleted."""
    batches = next((each for each in side.upstream if isinstance(each, MapBatches)), None)
    if batches is not None:
        instead = ", or how='inner'" if final else ""
        refuse(
            f"operator {name!r}: records of {batches.name!r} have no id: it would not be known which row "
            f"a partner deletes; use flat_map{instead}"
        )
