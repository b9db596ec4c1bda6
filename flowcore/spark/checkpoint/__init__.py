"""What lies in and beside a checkpoint: its identity, its lease, its offsets and the types of its state."""
