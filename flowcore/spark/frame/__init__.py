"""One DataFrame: SQL text, the branches that share a frame, and Spark's errors in the words of a flow."""
