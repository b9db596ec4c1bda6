"""Files in and beside a checkpoint: plan file, lease, offset log, backlog status; the types of its state."""
