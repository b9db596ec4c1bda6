"""Whether control elements of a signed topic have a valid signature, as SQL text.

The key is in a Python function that Spark ships to its workers, not in the query's plan, which Spark's UI and
event log show. The function gets null for a record, which costs nothing.
"""

from __future__ import annotations

import hashlib
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.functions import arrow_udf

from flowcore.api.connectors import LONGEST_CHANNEL
from flowcore.signatures import SIGNATURE_BYTES, is_signed

__all__ = ["check_signature", "register_signatures"]


def register_signatures(spark: SparkSession, topic: str, key: bytes | None) -> None:
    """Register the function of a topic in a session; nothing without a key."""
    if key is None:
        return

    def check(
        elements: pa.Array,  # type: ignore[type-arg]  # Spark reads the hints
        channels: pa.Array,  # type: ignore[type-arg]
        partitions: pa.Array,  # type: ignore[type-arg]
        signatures: pa.Array,  # type: ignore[type-arg]
    ) -> pa.Array:  # type: ignore[type-arg]
        if elements.null_count == len(elements):
            return pa.nulls(len(elements), pa.bool_())
        columns = (each.to_pylist() for each in (elements, channels, partitions, signatures))
        found = [
            None
            if element is None
            else is_signed(
                signature or b"",
                key,
                topic=topic,
                partition=partition,
                channel=channel or b"",
                element=element,
            )
            for element, channel, partition, signature in zip(*columns, strict=True)
        ]
        return pa.array(found, pa.bool_())

    made: Any = arrow_udf(check, "boolean")  # type: ignore[call-overload]  # hints tell its kind
    spark.udf.register(_name(topic), made)


def check_signature(topic: str, element: str, channel: str, signature: str) -> str:
    """True or false for a control element, null for null; SQL text of bytes.

    Headers are cut to one byte more than the longest valid one, so that they do not fill the memory.
    """
    sender, proof = (
        f"substring({text}, 1, {longest + 1})"
        for text, longest in ((channel, LONGEST_CHANNEL), (signature, SIGNATURE_BYTES))
    )
    return f"{_name(topic)}({element}, {sender}, partition, {proof})"


def _name(topic: str) -> str:
    return f"flowcore_signed_{hashlib.sha256(topic.encode()).hexdigest()[:16]}"
