"""What a flow may declare, and what declaring it does not do; `test_mistakes` has what is refused."""

import copy
import subprocess
import sys

import pytest

from flowcore import KafkaTopic, Tumbling
from tests.unit.api.given_streams import GivenStreams


@pytest.mark.parametrize(
    "text",
    [
        "max(price) + length(shop)", "count(*) filter (where price > 1)", "first(price) ignore nulls",
        "percentile_cont(0.5) within group (order by price)", "my_total(price) / 2", "bool_and(price > 1)",
        "transform(collect_list(price), v -> v + 1)", "coalesce(sum(price), 0)", "max(price) as p", "uuid()",
        "max(struct(price, tags)).price", "any(price > 1)",
    ],
)  # fmt: skip
def test_aggregates_may_be_expressions_over_aggregates(text: str) -> None:
    """They may read columns of ``by``, and call aggregates that the user registers."""
    ((column, _),) = GivenStreams().sales.aggregate(by="SHOP", p=text).operator.aggregates
    assert column == "p"


def test_flow_has_the_attributes_of_python_objects() -> None:
    """What is no method elsewhere is missing as in any object."""
    stream = GivenStreams().bids
    windows = stream.window(Tumbling(1), by="shop", time="processing")

    assert not hasattr(stream, "group_by")
    assert not hasattr(stream, "no_such_method")
    assert not hasattr(windows, "write")
    assert not hasattr(windows, "no_such_method")
    assert copy.copy(windows) == windows


def test_flow_writes_topics_that_only_seem_its_own() -> None:
    """A topic of another broker is another topic, and a stage that writes its topic ends."""
    given = GivenStreams()
    table = given.flow.read("table", KafkaTopic("table", schema="shop STRING", until="latest"))

    given.bids.write("other_broker", KafkaTopic("bids", servers="other:9092"))
    given.bids.write("not_upstream", KafkaTopic("asks"))
    table.write("again", KafkaTopic("table"))
    given.bids.select("shop").write(
        "also_read", KafkaTopic("t", schema="shop STRING", event_time="1", until="latest")
    )
    given.bids.write("not_read_here", KafkaTopic("trades.dead-letter"))

    assert len(given.flow.sinks) == 5


def test_declaring_and_planning_starts_no_jvm() -> None:
    """PySpark is not imported either."""
    program = (
        "import sys; from pipelines.auctions.flow import flow; from flowcore.planner import plan_flow; "
        "from flowcore.planner.views.text import render_text; assert render_text(plan_flow(flow)); "
        "print([n for n in sys.modules if n.split('.')[0] in ('pyspark', 'py4j', 'kafka', 'dagster')])"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
