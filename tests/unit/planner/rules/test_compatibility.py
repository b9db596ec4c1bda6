"""What a query needs in its checkpoint follows from its plan, without what may change."""

import json
from datetime import timedelta
from pathlib import Path

import pytest

from flowcore import Flow, KafkaTopic, Parquet, Stream, Tumbling, bounded_out_of_orderness
from flowcore.api.node import KeptState
from flowcore.errors import StateError
from flowcore.planner import plan_flow
from flowcore.planner.model import LiveQuery
from flowcore.planner.rules.compatibility import CheckpointNeeds, derive_needs, find_differences
from flowcore.settings import Settings
from flowcore.spark.checkpoint.plan_file import checkpoint_folder, plan_file_of, require_checkpoints_fit
from flowcore.spark.run.flow import run_flow

SALE = "shop STRING, price DOUBLE"
TOP = KeptState("top", "aggregate", ("shop",), ("max(price)",))


def _bids(flow: Flow, name: str = "bids") -> Stream:
    return flow.read(name, KafkaTopic(name, schema=SALE))


def _queries(flow: Flow) -> tuple[LiveQuery, ...]:
    plan = plan_flow(flow)
    return plan.live_queries


def test_needs_are_topics_in_order_and_what_is_kept() -> None:
    """One entry for each operator with state; names of sinks and filters are not among them."""
    flow = Flow("f")
    both = _bids(flow).where("price > 0").union(_bids(flow, "asks"))
    both.aggregate(by="shop", best="max(price)", name="top").write("out", KafkaTopic("out"))

    (query,) = (query for query in _queries(flow) if query.sinks)

    assert derive_needs(query) == CheckpointNeeds(("bids", "asks"), (TOP,))


def test_fingerprint_is_of_needs_alone() -> None:
    """Another name of the operator, another filter or sink: the same. Another function or topic: another."""

    def fingerprint(
        topic: str = "bids", function: str = "max", name: str = "top", where: str = "true"
    ) -> str:
        flow = Flow("f")
        top = _bids(flow, topic).where(where).aggregate(by="shop", best=f"{function}(price)", name=name)
        top.write("out", KafkaTopic("out"))
        return derive_needs(next(query for query in _queries(flow) if query.sinks)).fingerprint

    same = fingerprint()
    assert {fingerprint(name="other"), fingerprint(where="price > 1")} == {same}
    assert len({same, fingerprint("asks"), fingerprint(function="min")}) == 3


def test_windows_are_kept_by_key_group() -> None:
    """Their length, what they fold and the number of groups decide; how late a record may come does not."""

    def fingerprint(*, size_s: int = 10, total: str = "sum(price)", late_s: int = 0, groups: int = 16) -> str:
        flow = Flow("f")
        topic = KafkaTopic(
            "bids",
            schema=f"{SALE}, sold TIMESTAMP",
            event_time="sold",
            watermark=bounded_out_of_orderness(timedelta(seconds=4)),
        )
        windows = flow.read("bids", topic).window(
            Tumbling(seconds=size_s), by="shop", allowed_lateness=timedelta(seconds=late_s)
        )
        windows.aggregate(total=total).write("out", KafkaTopic("out"))
        plan = plan_flow(flow, settings=Settings.of({"state.key-groups": groups}, environment={}))
        assert plan.live is not None
        return derive_needs(next(query for query in plan.live.queries if query.sinks)).fingerprint

    same = fingerprint()
    assert fingerprint(late_s=30) == same
    others = {fingerprint(size_s=20), fingerprint(total="max(price)"), fingerprint(groups=8)}
    assert len({same} | others) == 4


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (CheckpointNeeds(("asks",), (TOP,)), "it was reading topic bids, and now topic asks"),
        (CheckpointNeeds(("asks", "bids"), (TOP,)), "it was reading topic bids, and now topics asks, bids"),
        (CheckpointNeeds(("bids",), ()), "operator 'top' kept max(price) by shop, and now nothing is kept"),
        (
            CheckpointNeeds(("bids",), (TOP, KeptState("n", "aggregate", (), ()))),
            "operator 'n' keeps its keys by nothing, and nothing was kept before",
        ),
        (
            CheckpointNeeds(("bids",), (KeptState("w", "window", ("shop",), ("max(price)",)),)),
            "aggregate 'top' kept max(price) by shop, and now window 'w' keeps max(price) by shop",
        ),
        (
            CheckpointNeeds(
                ("bids",), (KeptState("top", "aggregate", ("shop",), ("max(price)",), key_groups=32),)
            ),
            "operator 'top' kept max(price) by shop, and now max(price) by shop in 32 key groups",
        ),
    ],
    ids=["topic", "one-more-topic", "state-gone", "state-new", "kind", "key-groups"],
)
def test_differences_show_both_sides(now: CheckpointNeeds, said: str) -> None:
    """What was, and what is."""
    assert list(find_differences(CheckpointNeeds(("bids",), (TOP,)), now)) == [said]


def test_differences_are_none_where_only_a_name_has_changed() -> None:
    """The place in the query is what counts."""
    renamed = KeptState("other", TOP.kind, TOP.keys, TOP.values)

    assert not list(
        find_differences(CheckpointNeeds(("bids",), (TOP,)), CheckpointNeeds(("bids",), (renamed,)))
    )


def test_run_is_refused_before_anything_is_looked_at(tmp_path: Path) -> None:
    """No broker is asked, no stage is run and no JVM is started for a plan that cannot go on."""
    flow = Flow("f")
    shops = flow.read("shops", Parquet("nowhere", schema="shop STRING"))
    live = _bids(flow).join(shops, on="shop")
    live.aggregate(by="shop", best="max(price)").write("out", KafkaTopic("out"))
    settings = Settings.of(
        {"state.dir": tmp_path / "state", "kafka.bootstrap.servers": "127.0.0.1:1"}, environment={}
    )
    query = next(query for query in _queries(flow) if query.sinks)
    checkpoint = checkpoint_folder(query, "f", settings)
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "offsets" / "0").write_text('v1\n{}\n{"asks":{"0":5}}')

    with pytest.raises(StateError, match="was reading asks, and now bids"):
        run_flow(flow, settings)

    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["0"]


def test_checkpoint_that_was_never_used_is_not_looked_at(tmp_path: Path) -> None:
    """A run that was ended before its first batch leaves nothing to go on from."""
    flow = Flow("f")
    _bids(flow).write("out", KafkaTopic("out"))
    settings = Settings.of({"state.dir": tmp_path}, environment={})
    (query,) = _queries(flow)
    record = plan_file_of(checkpoint_folder(query, "f", settings))
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps({"format": 99}))

    require_checkpoints_fit(plan_flow(flow), settings)
