"""New users: the persons who opened an auction in the 10 seconds in which they registered. See q8.sql."""

from flowcore import Flow, Tumbling
from pipelines.nexmark.events import AUCTIONS, PERSONS, result_topic

flow = Flow("nexmark_q8")
persons = flow.read("persons", PERSONS).select("id", "name")
sellers = flow.read("auctions", AUCTIONS).select("seller AS id", "CAST(NULL AS STRING) AS name")
both = persons.union(sellers).window(Tumbling(10), by="id", name="both")
found = both.aggregate(person="max(name)", persons="count(name)", events="count(*)")
new = found.where("persons > 0 AND events > persons")
new.select("id", "person AS name", "window_start", "window_end").write("q8", result_topic("q8"))
