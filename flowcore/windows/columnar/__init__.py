"""Windows whose built-in aggregates are folded by column, with NumPy."""
