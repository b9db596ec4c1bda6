"""Results of bounded stages: manifests and versions, swaps of sinks, and the tables that are joined."""
