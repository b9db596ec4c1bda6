"""From a planned live query to one streaming DataFrame."""
