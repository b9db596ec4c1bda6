"""Record ids as SQL text: the same for the same output of the same input, also when a batch runs again.

An id names the writer of a record, the topic that it was made of, and its place there or its origin::

    flow/sink:topic id:partition:offset:ordinal
    flow/sink:topic id:operator:...

Kafka's topic ids distinguish a topic from an earlier topic of the same name. An id of several sources has a
digest of their topic ids. Nothing in an id changes while the query can continue from its checkpoint.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flowcore.api.operators import Operator, Read
from flowcore.kafka.topics import TopicIdentity
from flowcore.planner.rules.record_labels import label_states, label_steps
from flowcore.spark.frame.rows import RECORD_ID, RECORD_ORDINAL
from flowcore.spark.frame.sql import json_object, literal

__all__ = ["RecordIds", "id_after_writer", "key_text", "shorten"]

_DIGEST_BYTES = 16
_LONGEST_KEY = 200  # bytes
_LONGEST_CROSSED = 4_096  # bytes; no flow makes an id as long


@dataclass(frozen=True, slots=True)
class RecordIds:
    """Makes the record ids of a query.

    Attributes:
        flow: The name of the flow.
        sources: Kafka's topic id by name of the topic, in the order of the query's sources.
        has_ordinals: Records carry an ordinal, since some may be repeated.
        steps: Labels of the operators that repeat records.
        states: Labels of the operators with state.
    """

    flow: str
    sources: Mapping[str, str]
    has_ordinals: bool
    steps: Mapping[Operator, str]
    states: Mapping[Operator, str]

    @classmethod
    def of(
        cls,
        flow: str,
        operators: Sequence[Operator],
        topics: Mapping[str, TopicIdentity],
        *,
        has_ordinals: bool,
    ) -> RecordIds:
        """The ids of a query; ``topics`` are the identities of its topics by name."""
        names = [topic.name for node in operators if isinstance(node, Read) and (topic := node.topic)]
        sources = {name: (topics[name].id if name in topics else "") or name for name in names}
        return cls(flow, sources, has_ordinals, label_steps(operators), label_states(operators))

    @property
    def input(self) -> str:
        """The id of the query's only source, or a digest of those of all."""
        first, *others = self.sources.values()
        if not others:
            return first
        digest = hashlib.sha256(":".join(sorted([first, *others])).encode()).digest()[:_DIGEST_BYTES]
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")

    def of_record(self, writer: str) -> str:
        """The id of a record that was made of one source record, from its coordinates."""
        ordinal = RECORD_ORDINAL if self.has_ordinals else "'0'"
        head = literal(f"{self.flow}/{writer}:")
        return f"concat({head}, {self._topic('topic')}, ':', partition, ':', offset, ':', {ordinal})"

    def of_result(self, writer: str) -> str:
        """The id of a record of an operator with state, from `RECORD_ID`; null if it has none."""
        ordinal = ""
        if self.has_ordinals:
            ordinal = f", CASE WHEN {RECORD_ORDINAL} <> '0' THEN ':' || {RECORD_ORDINAL} ELSE '' END"
        return f"concat({literal(f'{self.flow}/{writer}:{self.input}:')}, {RECORD_ID}{ordinal})"

    def of_place(self, topic: str, partition: str, offset: str) -> str:
        """`RECORD_ID` of a record that was made of one source record; the arguments are SQL text."""
        return f"({self.place(topic, partition, offset)} || ':0')"

    def place(self, topic: str, partition: str, offset: str) -> str:
        """The place of a source record within `RECORD_ID`; the arguments are SQL text."""
        head = f"{self._topic(topic)}, ':', " if len(self.sources) > 1 else ""
        return f"concat({head}{partition}, ':', {offset})"

    def _topic(self, topic: str) -> str:
        first, *others = self.sources.values()
        if not others:
            return literal(first)
        cases = (f"WHEN {literal(name)} THEN {literal(known)}" for name, known in self.sources.items())
        return f"CASE {topic} {' '.join(cases)} END"


def key_text(columns: Mapping[str, str]) -> str:
    """The key of a result as JSON text, or a digest of a long one; the columns are SQL text by name.

    It is in a header, and headers count for the size of a message.
    """
    if not columns:
        return "'{}'"
    text = json_object(columns)
    return shorten(text, _LONGEST_KEY)


def shorten(text: str, longest: int) -> str:
    """A text, or its digest if it has more bytes; the argument and the result are SQL text."""
    return f"CASE WHEN octet_length({text}) > {longest} THEN sha2({text}, 256) ELSE {text} END"


def id_after_writer(record_id: str) -> str:
    """The part of a record id after the name of its writer; the argument and the result are SQL text.

    It is in the ids of what is made of the record, in headers, and anyone can write to the topic of a cut.
    """
    return shorten(f"substring({record_id}, instr({record_id}, ':') + 1)", _LONGEST_CROSSED)
