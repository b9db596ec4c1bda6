"""Sources and sinks: messages, values, dead letters, watermarks and the side channels of a live query."""
