"""Metrics: how is a live run doing, who is told, and what is kept of it?

`progress` declares what is told, each field once; `tally` adds up what Spark tells of batches; a `reporter`
tells listeners: the `log`, `prometheus`, the `history` file. `health` and `report` show it to a person.
Nothing here knows Spark or Kafka.
"""
