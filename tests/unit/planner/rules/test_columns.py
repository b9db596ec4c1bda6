"""The plan finds unused columns."""

from flowcore import Flow, KafkaTopic, Parquet, Stream
from flowcore.planner.rules.columns import find_used_columns
from flowcore.planner.ways import find_upstream

SALE = "id BIGINT, shop STRING, price DOUBLE, tags ARRAY<STRING>"


def _sales(flow: Flow) -> Stream:
    return flow.read("sales", KafkaTopic("sales", schema=SALE))


def _used(flow: Flow) -> dict[str, set[str]]:
    operators = find_upstream(flow.sinks)
    return {node.name: set(columns) for node, columns in find_used_columns(operators).items()}


def test_columns_are_used_from_the_sink_backwards() -> None:
    """The inputs of an unused column are unused, too."""
    flow = Flow("f")
    doubled = _sales(flow).with_columns(twice="price * 2", loud="upper(shop)", name="doubled")
    doubled.select("id", "Twice", name="chosen").write("out", KafkaTopic("out"))

    assert _used(flow) == {
        "sales": {"id", "price"},
        "doubled": {"id", "twice"},
        "chosen": {"id", "twice"},
        "out": set(),
    }


def test_columns_of_conditions_keys_and_aggregates_are_used() -> None:
    """Conditions, joins and counts use columns that are not in the output."""
    flow = Flow("f")
    shops = flow.read("shops", Parquet("shops", schema="shop STRING, city STRING, size INT"))
    joined = _sales(flow).where("price > 0", name="paid").join(shops, on="shop", how="left", name="placed")
    joined.aggregate(by="id", n="count(*)", name="counted").write("out", KafkaTopic("out"))

    used = _used(flow)

    assert used["sales"] == {"id", "shop", "price"}
    assert used["paid"] == {"id", "shop"}
    assert used["shops"] == {"shop"}
    assert used["placed"] == {"id"}


def test_a_dropped_column_is_not_used() -> None:
    """A column that no sink gets is not read."""
    flow = Flow("f")
    _sales(flow).drop("tags", "Price", name="short").write("out", KafkaTopic("out"))

    assert _used(flow)["sales"] == _used(flow)["short"] == {"id", "shop"}


def test_a_generator_is_used_even_if_its_column_is_not() -> None:
    """It decides how many records there are."""
    flow = Flow("f")
    sales = flow.read("sales", Parquet("sales", schema=SALE))
    sales.select("id", "explode(tags) as tag", "shop", name="tagged").select("id").write(
        "out", Parquet("out")
    )

    assert _used(flow)["sales"] == {"id", "tags"}


def test_every_column_is_used_by_a_function_and_by_each_branch() -> None:
    """A function may read all columns; two readers use the columns of both."""
    flow = Flow("f")
    sales = _sales(flow)
    sales.select("id").write("ids", KafkaTopic("ids"))
    sales.select("price").write("prices", KafkaTopic("prices"))
    assert _used(flow)["sales"] == {"id", "price"}

    sales.apply(lambda frame: frame, name="any").write("all", KafkaTopic("all"))
    assert _used(flow)["sales"] == {"id", "shop", "price", "tags"}


def test_a_python_function_uses_all_columns_or_those_it_names() -> None:
    """Other columns are neither read nor sent to a worker; a filter passes them on."""
    flow = Flow("f")
    cheap = _sales(flow).filter(bool, uses=["Price"], name="cheap")
    cheap.map(dict.copy, schema="id BIGINT", uses=["id"], name="ids").write("out", KafkaTopic("out"))
    assert _used(flow)["sales"] == {"id", "price"}
    assert _used(flow)["cheap"] == {"id"}

    cheap.flat_map(lambda sale: [sale], schema="x INT, y INT", name="all").select("x").write(
        "more", KafkaTopic("more")
    )
    assert _used(flow)["sales"] == {"id", "shop", "price", "tags"}
    assert _used(flow)["all"] == {"x"}


def test_a_batch_function_that_uses_no_column_is_sent_none() -> None:
    """Such a function only counts rows."""
    flow = Flow("f")
    _sales(flow).map_batches(lambda batch: batch, schema="n INT", uses=[]).write("out", KafkaTopic("out"))

    assert _used(flow)["sales"] == set()
