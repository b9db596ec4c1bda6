"""Everything that touches Spark: sessions, compilation, bounded results, live queries."""
