"""One live query as one DataFrame: what comes in, what travels beside records, what goes out."""
