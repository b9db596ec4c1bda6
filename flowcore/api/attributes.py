"""Operator attributes: what an operator promises about its output, so that the plan can save work.

An attribute that is not declared has its safe default, with which nothing is saved.

Source: FLIP-329 (operator attributes for object reuse), FLIP-331 (output at the end of input),
FLIP-365 (idempotent output).
"""

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Self

from flowcore.errors import PlanError

__all__ = ["Attributes", "OperatorAttributes", "OperatorAttributesBuilder", "collect_declared"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorAttributes:
    """The promises of an operator; the defaults promise nothing.

    Attributes:
        output_only_at_end: The operator emits nothing before its input has ended.
        output_on_checkpoint: The operator may emit records when a checkpoint is taken.
        output_value_stored: The operator may still use a record that it has emitted. False: the record may be
            passed on without a deep copy.
        input_record_stored: The operator may keep or change the record object that it gets. False: the object
            may be shared.
        output_idempotent: A later output replaces the earlier ones of its key.
    """

    output_only_at_end: bool = False
    output_on_checkpoint: bool = False
    output_value_stored: bool = True
    input_record_stored: bool = True
    output_idempotent: bool = False


class OperatorAttributesBuilder:
    """Declares some of the attributes of `OperatorAttributes`, and leaves the others undeclared.

    >>> OperatorAttributesBuilder().set_output_idempotent(True).build().output_idempotent
    True
    """

    def __init__(self) -> None:
        self._given: dict[str, bool] = {}

    def set_output_only_at_end(self, value: bool) -> Self:
        return self._set("output_only_at_end", value)

    def set_output_on_checkpoint(self, value: bool) -> Self:
        return self._set("output_on_checkpoint", value)

    def set_output_value_stored(self, value: bool) -> Self:
        return self._set("output_value_stored", value)

    def set_input_record_stored(self, value: bool) -> Self:
        return self._set("input_record_stored", value)

    def set_output_idempotent(self, value: bool) -> Self:
        return self._set("output_idempotent", value)

    def build(self, operator: str = "") -> OperatorAttributes:
        """The attributes; each one that was not set is logged at DEBUG with its default."""
        attributes = OperatorAttributes(**self._given)
        for field in fields(attributes):
            if field.name not in self._given:
                _log.debug(
                    "operator %r does not declare %s: %s is assumed, which is always safe",
                    operator, field.name, getattr(attributes, field.name),
                )  # fmt: skip
        return attributes

    def _set(self, name: str, value: bool) -> Self:
        self._given[name] = _truth(name, value)
        return self


Attributes = OperatorAttributes | OperatorAttributesBuilder
"""The attributes of a declaration; of a builder, those that were set."""


def collect_declared(attributes: Attributes | None) -> Mapping[str, bool]:
    """The declared attributes by name: all built attributes, or those that were set on a builder.

    Raises:
        PlanError: The attributes are of another type, or a value is not true or false.
    """
    match attributes:
        case None:
            return {}
        case OperatorAttributesBuilder():
            return dict(attributes._given)  # noqa: SLF001 - of this module
        case OperatorAttributes():
            return {name: _truth(name, value) for name, value in asdict(attributes).items()}
    msg = (  # type: ignore[unreachable]
        f"attributes={attributes!r} are not operator attributes: nothing could be read from them; pass "
        "OperatorAttributesBuilder().set_output_idempotent(True), or OperatorAttributes(...)"
    )
    raise PlanError(msg)


def _truth(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        msg = f"attribute {name}={value!r} is neither true nor false: it would promise nothing; pass a bool"
        raise PlanError(msg)
    return value
