"""What a live query reads and writes: messages, values, dead letters, and elements beside records."""
