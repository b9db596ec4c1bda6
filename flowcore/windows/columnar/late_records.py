"""Late sessions: records that may be late meet the sessions of their keys one after the other.

A record that alone makes a session that is complete already counts only if it joins one that has not ended;
so it matters what came before it, and such keys are not merged by column.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flowcore.elements import MAX_TIMESTAMP_MS
from flowcore.windows.columnar.sessions import Bools, Sessions

__all__ = ["Arrived", "one_by_one"]

_OWNER, _START, _LAST, _FIRINGS, _FIELDS = range(5)


@dataclass(frozen=True, slots=True)
class Arrived:
    """What has become of sessions and of what came.

    Attributes:
        held: The sessions that there are now, key by key.
        fired: Those that emitted, in order, each as it was then.
        late: The positions of what counted nowhere.
    """

    held: Sessions
    fired: Sessions
    late: list[int]


def one_by_one(held: Sessions, came: Sessions, old: Bools, *, watermark_ms: int, lateness_ms: int) -> Arrived:
    """Let stretches of records join sessions in the order in which they came.

    Args:
        held: The sessions of their keys.
        came: The stretches, in order.
        old: Those of one record that may be late.
        watermark_ms: How far event time has come.
        lateness_ms: How long complete sessions are kept.
    """
    fields = tuple(held.kept)
    combines = [field.combine_two for field in fields]
    of: dict[int, list[list[Any]]] = {}
    for session in held.rows():
        of.setdefault(session[_OWNER], []).append(session)
    fired: list[list[Any]] = []
    late: list[int] = []
    for place, (new, is_old) in enumerate(zip(came.rows(), old.tolist(), strict=True)):
        near: list[list[Any]] = []
        apart: list[list[Any]] = []
        for session in of.get(new[_OWNER], ()):
            meets = session[_START] <= new[_LAST] + 1 and new[_START] <= session[_LAST] + 1
            (near if meets else apart).append(session)
        last_ms = max([new[_LAST], *(session[_LAST] for session in near)])
        if is_old and min(last_ms + lateness_ms, MAX_TIMESTAMP_MS) <= watermark_ms:
            late.append(place)
            continue
        for session in near:
            new[_START] = min(new[_START], session[_START])
            new[_FIRINGS] = max(new[_FIRINGS], session[_FIRINGS])
            for position, combine in enumerate(combines, _FIELDS):
                new[position] = combine(session[position], new[position])
        new[_LAST] = last_ms
        of[new[_OWNER]] = [*apart, new]
        if is_old and last_ms <= watermark_ms:
            new[_FIRINGS] += 1
            fired.append(list(new))
    stays = [session for owner in sorted(of) for session in of[owner]]
    return Arrived(Sessions.of_rows(stays, fields), Sessions.of_rows(fired, fields), late)
