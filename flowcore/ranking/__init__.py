"""Ranking by key group: `flowcore.ranking.keyed`."""
