"""Live queries from their start to their stop: modes, checkpoints, leases, results, progress."""
