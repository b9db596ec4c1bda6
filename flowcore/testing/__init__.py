"""Tools for tests of flows.

- `harness`: windows and process functions in memory, with a manual clock;
- `kafka_fixtures`, `kafka_container`: a Kafka broker in a container, with faults;
- `transcripts`: scripted tests of operators, in memory and on Spark;
- `fuzz`: bad messages; `benchmark`: reports of measurements.
"""
