"""What a user declares: flows, operators, connectors, schemas. No engine, no input or output."""
