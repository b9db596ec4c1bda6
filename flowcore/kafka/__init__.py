"""Everything that speaks to Kafka: the embedded broker, topics and offsets."""
