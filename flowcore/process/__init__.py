"""Keyed process functions: what does a user's function do with each record, its key's state and time?"""

from __future__ import annotations

from flowcore.process.function import KeyedProcessFunction

__all__ = ["KeyedProcessFunction"]
