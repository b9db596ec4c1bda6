"""What tests of flows need, shipped to users: a Kafka broker in a container, with faults."""
