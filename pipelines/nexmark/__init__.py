"""Events of an online auction, after the Nexmark benchmark: generator, Parquet writer, Kafka feed."""
