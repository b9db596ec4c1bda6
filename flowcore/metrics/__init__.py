"""Metrics of a live run: the typed progress, the listeners that receive it, and its history.

`progress` declares all measures once. `tally` sums Spark's reports of batches. `reporting` passes progress to
the listeners: the log, `prometheus`, `history` and `dagster`. `health` and `report` show it to a person.
No module here imports Spark or Kafka.
"""
