"""Value formats as SQL text: parse a payload, find the payloads that do not fit, write a value."""
