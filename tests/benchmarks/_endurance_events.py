"""The places in the UI that show each event afterwards, from its GraphQL API."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.benchmarks._endurance_site import DEAD_LETTERS, LIVE, Site

SUPERVISOR = "auctions_supervision"


def read_events(site: Site) -> list[dict[str, Any]]:
    """Each event of the story with the places that show it."""
    runs = {run["id"]: run for run in site.ui.all_runs()}
    beats = site.ui.beats(*LIVE)
    ticks = site.ui.ticks(SUPERVISOR)
    running = site.ui.checks(*LIVE, name="running")
    found = []
    for note in site.story:
        places: list[str] = []
        match note["what"]:
            case "kill -9 of the JVM" | "kill -9 of the run worker":
                places = [
                    *_failure(site, note["run"]),
                    *_relaunch(runs.values(), note["run"]),
                    *_shown_by_check(running, note["run"]),
                ]
            case "live":
                places = _live(beats, note["run"])
            case "refresh":
                places = [*_made(site, note), *_taken_over(beats, note["version"])]
            case "kill -9 of the code server":
                places = _without_code_server(site, note, ticks)
            case "broker stopped":
                places = _outage(site, note, runs.values(), beats, running)
            case "terminate":
                places = _planned_end(site, note, runs, ticks)
            case "bad messages":
                places = _dead_letters(site, beats)
            case _:
                continue
        found.append({**note, "read": places})
    return found


def _failure(site: Site, run: str) -> list[str]:
    found = []
    for event in site.ui.log(run):
        if event["__typename"] in ("RunFailureEvent", "ExecutionStepFailureEvent"):
            error = event.get("error") or {}
            why = [event, *([error] if error else []), *error.get("causes", [])]
            found.append(f"log of run {run}: {event['__typename']}: {'; '.join(map(_short, why))}")
    return found


def _relaunch(runs: Iterable[dict[str, Any]], run: str) -> list[str]:
    return [
        f"run {each['id']}: {why}"
        for each in runs
        for why in (
            f"tag flowcore/restart-of ({each['tags'].get('flowcore/restart')} in a row)"
            if each["tags"].get("flowcore/restart-of") == run
            else "",
            f"parentRunId (Dagster's retry {each['tags'].get('dagster/retry_number')})"
            if each["parentRunId"] == run
            else "",
        )
        if why
    ]


def _shown_by_check(checks: list[dict[str, Any]], run: str) -> list[str]:
    return [
        f"check running: {each['evaluation']['description']}"
        for each in checks
        if each["evaluation"] and run in (each["evaluation"]["description"] or "")
    ]


def _live(beats: list[dict[str, Any]], run: str) -> list[str]:
    """The switch to real-time mode; or, if it had nothing to catch up with, its first heartbeat in it."""
    modes = [[v for k, v in beat.items() if k.endswith("/mode")] for beat in beats if beat["run"] == run]
    first = [each for each in modes if {*each} == {"realtime"}][-1:]
    return _switched(beats, "caught up", "micro-batch to realtime") or [
        f"materialization of auctions/live, mode: {', '.join(each)}, run {run}" for each in first
    ]


def _switched(beats: list[dict[str, Any]], *words: str) -> list[str]:
    rows = {
        row
        for beat in beats
        for row in str(beat.get("health", "")).splitlines()
        if all(word in row for word in words)
    }
    return [f"materialization of auctions/live, health: {row}" for row in sorted(rows)]


def _made(site: Site, note: dict[str, Any]) -> list[str]:
    return [
        f"materialization of auctions/catalog by run {note['run']}: version {beat['version']}"
        for beat in site.ui.beats("auctions", "catalog")
        if beat["run"] == note["run"]
    ]


def _taken_over(beats: list[dict[str, Any]], version: str) -> list[str]:
    first = [b for b in beats if version in [v for k, v in b.items() if k.startswith("bounded_version/")]][
        -1:
    ]
    return [
        *(f"materialization of auctions/live, bounded_version: run {beat['run']}" for beat in first),
        *_switched(beats, version, "was committed"),
    ]


def _without_code_server(site: Site, note: dict[str, Any], ticks: list[dict[str, Any]]) -> list[str]:
    begin, end = _span(site, note)
    logged = [
        f"log of run {note['run']}: {_short(event)}"
        for event in site.ui.log(note["run"])
        if "code server" in event.get("message", "")
    ]
    failed = (tick for tick in ticks if begin <= tick["timestamp"] <= end and tick["error"])
    return logged + [f"tick of {SUPERVISOR} {tick['status']}: {_short(tick['error'])}" for tick in failed]


def _outage(
    site: Site,
    note: dict[str, Any],
    runs: Iterable[dict[str, Any]],
    beats: list[dict[str, Any]],
    checks: list[dict[str, Any]],
) -> list[str]:
    begin, end = _span(site, note)
    failed = [r for r in runs if r["jobName"] == "auctions_live" and begin <= (r["endTime"] or 0) <= end]
    places = [
        place for run in failed for place in (*_failure(site, run["id"]), *_shown_by_check(checks, run["id"]))
    ]
    silent = max((b.get("broker_silent_s", 0) for b in beats if begin <= b["at_s"] <= end), default=0)
    if silent:
        places.append(f"materialization of auctions/live, broker_silent_s: up to {silent}")
    return places + _switched(beats, "answers again")


def _planned_end(
    site: Site, note: dict[str, Any], runs: dict[str, dict[str, Any]], ticks: list[dict[str, Any]]
) -> list[str]:
    log = [
        f"log of run {note['run']}: {event['__typename']}: {_short(event)}"
        for event in site.ui.log(note["run"])
        if event["__typename"] in ("RunCancelingEvent", "RunCanceledEvent")
    ]
    after = [t for t in ticks if t["timestamp"] >= site.began_s + note["at_s"] and t["skipReason"]]
    return [
        f"run {note['run']}: {runs[note['run']]['status']}",
        *log,
        *(f"tick of {SUPERVISOR}: {tick['skipReason']}" for tick in after[:1]),
    ]


def _dead_letters(site: Site, beats: list[dict[str, Any]]) -> list[str]:
    quiet = site.ui.checks("kafka", DEAD_LETTERS, name="quiet")
    most = max((beat.get("bids/dead_letters", 0) for beat in beats), default=0)
    return [
        *(f"check quiet: {each['evaluation']['description']}" for each in quiet if each["evaluation"]),
        *([f"materialization of auctions/live, bids/dead_letters: {most}"] if most else []),
    ]


def _span(site: Site, note: dict[str, Any]) -> tuple[float, float]:
    begin = site.began_s + note["at_s"]
    return begin, begin + (note.get("healed_s") or 0) + 30.0


def _short(event: dict[str, Any] | None) -> str:
    return " ".join(str((event or {}).get("message", "")).split())[:200]
