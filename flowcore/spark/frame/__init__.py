"""One DataFrame for a query: kinds of rows, branches that share the frame, and SQL text."""
