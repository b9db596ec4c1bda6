"""Local item suggestion: who sells in category 10 and lives in three states. See q3.sql."""

from flowcore import Flow
from pipelines.nexmark.events import AUCTIONS, PERSONS, result_topic

flow = Flow("nexmark_q3")
auctions = flow.read("auctions", AUCTIONS).where("category = 10").select("id", "seller")
persons = flow.read("persons", PERSONS).where("state IN ('OR', 'ID', 'CA')")
local = auctions.join(persons.select("id AS seller", "name", "city", "state"), on="seller", ttl=None)
local.select("name", "city", "state", "id").write("q3", result_topic("q3"))
