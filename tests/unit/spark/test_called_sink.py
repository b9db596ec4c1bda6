"""The error of a sink, as Spark's search for an interruption and a run's report get it."""

import re
import traceback

import pytest

from flowcore.errors import RunError
from flowcore.spark.topics.called_sink import CalledSink

STACK = "\n\tat org.apache.spark.Some.method(Some.scala:1)" * 500
SPARK_SEARCH = re.compile(
    r"py4j\.protocol\.Py4JJavaError: An error occurred while calling((?:.|\r\n|\r|\n)*)"
    r"(java\.lang\.InterruptedException|java\.nio\.channels\.ClosedByInterruptException)"
)
"""That of Spark's StreamExecution, whose group recurses for each character in Java."""


def written(text: str) -> tuple[CalledSink, str]:
    def write(_: object, number: int) -> None:
        assert number == 7
        raise ValueError(text)

    sink = CalledSink(write)
    with pytest.raises(RunError) as caught:
        sink("frame", 7)  # type: ignore[arg-type]
    assert str(sink.error) == text
    return sink, "".join(traceback.format_exception(caught.value))


def test_spark_gets_a_short_text_and_the_run_the_whole_error() -> None:
    """Whatever the JVM says."""
    _, reported = written(f"An error occurred while calling o1.collect.\n: the reason{STACK}")

    assert "the reason" in reported
    assert len(reported) < 2_000
    assert not SPARK_SEARCH.search(reported)


def test_spark_finds_an_interruption_in_few_characters() -> None:
    """So that a query that is stopped ends without an error, as Spark means it."""
    _, reported = written(f"calling o1.collect.\n: java.lang.InterruptedException{STACK}")

    found = SPARK_SEARCH.search(reported)
    assert found is not None
    assert len(found[1]) < 100


def test_batch_that_is_written_leaves_no_error() -> None:
    """The sink gets the frame and the number of the batch."""
    got: list[tuple[object, int]] = []
    sink = CalledSink(lambda *batch: got.append(batch))

    sink("frame", 3)  # type: ignore[arg-type]

    assert got == [("frame", 3)]
    assert sink.error is None
