"""Half an hour of faults: the reference flow under Dagster must recover by itself, with correct output.

The benchmark acts as a user of the UI, through its GraphQL API, with webserver, daemon and code server as
deployed: it materializes the history, launches the live run over a backlog, refreshes the history twice (the
second time while the broker is down) and terminates the run at the end. Meanwhile it kills Spark's JVM (while
catching up), the run worker and the code server, and stops the broker for a minute. Then it checks that every
sent bid was delivered with the values of the version of history that its record names, and that the UI shows
each event.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pyarrow.compute as pc

from flowcore.errors import FlowcoreError, RunError
from flowcore.kafka.broker import EmbeddedBroker
from flowcore.metrics.history import history_folder, last_progress
from flowcore.spark.checkpoint.lease import Leases
from pipelines.auctions import verify
from pipelines.auctions.delivery import Delivery, check_delivery, read_delivered
from pipelines.auctions.readers import read_values
from pipelines.benchmark import this_commit, this_machine
from tests.benchmarks._endurance_events import SUPERVISOR, read_events
from tests.benchmarks._endurance_site import (
    DEAD_LETTERS,
    ENDED,
    ENRICHED,
    HIGHEST,
    QUERIES,
    Feeder,
    Site,
    code_server,
    parent_of,
    prepare,
    processes_of,
)
from tests.dagster.dagster_ui import TERMINATE, serve

BAD_MESSAGES = 25
MUTANT_BIDS = 20_000
AWAY_S = 60.0
OUTPUT_ERRORS = (
    "missing", "unexpected", "without_id", "under_several_ids", "shared_ids", "of_unknown_version", "stale",
    "wrong",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Parameters of the trial; see the options of the command."""

    minutes: float
    bids: int
    rate: float
    history_events: int
    batch_duration: str
    away: float

    @property
    def histories(self) -> list[int]:
        """Number of events of each successive history."""
        return [self.history_events * tenths // 10 for tenths in (10, 11, 12)]

    @property
    def description(self) -> str:
        events = ", ".join(f"{count:,}" for count in self.histories)
        return (
            f"{self.bids:,} bids of backlog, {self.rate:,.0f} bids/s after it, {self.minutes:g} minutes; "
            f"histories of {events} events; real-time batches of {self.batch_duration}; the broker down for "
            f"{self.away:g} s"
        )


@click.command()
@click.option("--minutes", default=30.0, show_default=True, help="Time from launch to termination.")
@click.option("--bids", default=3_000_000, show_default=True, help="Bids of backlog.")
@click.option("--rate", default=500.0, show_default=True, help="Bids a second after the backlog.")
@click.option("--history-events", default=200_000, show_default=True, help="Events of the first history.")
@click.option("--batch-duration", default="1 min", show_default=True, help="Duration of real-time batches.")
@click.option("--away", default=AWAY_S, show_default=True, help="Seconds without a broker.")
@click.option("--keep", is_flag=True, help="Keep the folder with the logs of all servers.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(*, keep: bool, as_json: bool, **given: Any) -> None:
    """Run the flow under Dagster through kills, an outage and refreshes, and verify every record."""
    folder = Path(tempfile.mkdtemp(prefix="flowcore-endurance-"))
    click.echo(f"folder: {folder}", err=True)
    found = _endure(folder, Trial(**given))
    if found["ok"] and not keep:
        shutil.rmtree(folder, ignore_errors=True)
    _show(found, as_json=as_json)
    sys.exit(0 if found["ok"] else 1)


def _endure(folder: Path, trial: Trial) -> dict[str, Any]:
    home, state = folder / "dagster", folder / "state"
    home.mkdir()
    with EmbeddedBroker(folder / "broker") as broker:
        prepare(folder, broker.bootstrap_servers, trial.histories)
        settings = {
            "kafka.bootstrap.servers": broker.bootstrap_servers,
            "data.dir": str(folder / "data"),
            "state.dir": str(state),
            "execution.realtime.batch-duration": trial.batch_duration,
        }
        feeder = Feeder(broker.bootstrap_servers, trial.history_events, trial.rate)
        feeder.backlog(trial.bids)
        with (
            code_server(home, settings) as code,
            serve(home, state, settings, code.workspace) as ui,
        ):
            site = Site(folder, broker, feeder, ui, code)
            _play(site, trial)
            read = read_events(site)
            left_runs = [run for run in ui.all_runs() if run["status"] not in ENDED]
        answer = _verify(site)
        processes = _remaining_processes(home)
    free = _are_leases_free(state)
    unread = [event["what"] for event in read if not event["read"]]
    ok = not (left_runs or processes or unread) and free and answer["ok"]
    return {
        "name": "endurance",
        "workload": trial.description,
        "machine": this_machine(),
        "commit": this_commit(),
        "events": read,
        "events_not_readable": unread,
        "runs_not_ended": left_runs,
        "processes_left": processes,
        "leases_free": free,
        **answer,
        "ok": ok,
    }


def _play(site: Site, trial: Trial) -> None:
    """Perform all actions and faults in turn; each waits for its time and for the previous recovery."""
    feeder, seconds, away = site.feeder, trial.minutes * 60, trial.away
    site.use_history(0)
    _wait_for_history(site, site.ui.launch("auctions_history"), "history")
    config = {"ops": {"auctions__live": {"config": {"mode": "auto"}}}}
    site.began_s = time.time()
    launched = site.ui.launch("auctions_live", config)
    site.note_event("launch", run=launched)
    feeder.start()
    site.wait(
        lambda: site.written() > trial.bids // 20 and _worker(site),
        "the first bids of the backlog are emitted",
    )
    with _healing(site, "kill -9 of the JVM", in_backlog=True):
        _kill(_jvm(site))
    site.note_event("live", run=site.live_run()["id"], written=site.written())
    _at(site, 0.25 * seconds)
    site.use_history(1)
    _wait_for_refresh(site, site.ui.launch("auctions_history"))
    feeder.stop()
    feeder.spoil(BAD_MESSAGES)
    site.note_event("bad messages", messages=BAD_MESSAGES)
    feeder.start()
    _at(site, 0.4 * seconds)
    with _healing(site, "kill -9 of the run worker"):
        _kill(_worker(site))
    _at(site, 0.55 * seconds)
    feeder.stop()
    with _healing(site, "broker stopped", anew=False) as note:
        site.broker.stop()
        gone = time.monotonic()
        site.use_history(2)
        refresh = site.ui.launch("auctions_history")
        time.sleep(max(away - (time.monotonic() - gone), 0))
        site.broker.start()
        note["away_s"] = round(time.monotonic() - gone, 1)
        feeder.start()
    _wait_for_refresh(site, refresh)
    _at(site, 0.8 * seconds)
    with _healing(site, "kill -9 of the code server", anew=False):
        _kill(site.code.process.pid)
    _at(site, seconds)
    feeder.stop()
    feeder.spoil(BAD_MESSAGES)
    site.wait(lambda: _drained(site), "everything that was sent is read")
    _terminate(site)


def _wait_for_history(site: Site, run: str, what: str) -> dict[str, Any]:
    """Wait until a run has materialized the history; return a note of its version."""
    site.wait(lambda: site.ui.run(run)["status"] in ENDED, "the history is materialized")
    made = next((made for made in site.ui.beats("auctions", "catalog") if made["run"] == run), None)
    if made is None:
        msg = f"run {run} made no catalog: {site.ui.log(run)[-5:]}"
        raise RunError(msg)
    return site.note_event(what, run=run, version=made["version"])


def _wait_for_refresh(site: Site, run: str) -> None:
    """Wait until a refresh is committed and both queries join it."""
    began = time.time()
    note = _wait_for_history(site, run, "refresh")
    site.wait(
        lambda: set(_versions(site)) == {note["version"]} and site.reads_again(began),
        "both queries have taken it over",
    )
    note["healed_s"] = round(site.now_s - note["at_s"], 1)


def _versions(site: Site) -> list[str]:
    found = last_progress(history_folder(site.ui.state, "auctions"))
    return [version for query in (found.queries if found else ()) for version in query.bounded.values()]


@contextmanager
def _healing(
    site: Site, what: str, *, anew: bool = True, in_backlog: bool = False
) -> Iterator[dict[str, Any]]:
    """Note an action, and the seconds until the stream reads again.

    Args:
        site: The running benchmark.
        what: The action, for the note.
        anew: Whether another run must have replaced the live run.
        in_backlog: Whether the run is killed in backlog; recovery then takes as long as the backlog.
    """
    run = site.live_run()["id"]
    note = site.note_event(what, run=run, **({"written": site.written()} if in_backlog else {}))
    began = time.time()
    yield note
    action_ended_s = time.time()
    site.wait(
        lambda: site.reads_again(action_ended_s, besides=run if anew else None),
        f"it reads again after {what}",
    )
    note["healed_s"] = round(time.time() - began, 1)
    note["run_after"] = site.live_run()["id"]
    site.note_event("healed", event=what, seconds=note["healed_s"], run=note["run_after"])


def _at(site: Site, seconds: float) -> None:
    time.sleep(max(seconds - site.now_s, 0))


def _worker(site: Site) -> int:
    """The live run's process; 0 before its first report."""
    found = last_progress(history_folder(site.ui.state, "auctions"))
    return found.pid if found else 0


def _jvm(site: Site) -> int:
    worker = _worker(site)
    return next(jvm for jvm in site.ui.jvms() if parent_of(jvm) == worker)


def _kill(process: int) -> None:
    os.kill(process, signal.SIGKILL)


def _drained(site: Site) -> bool:
    beat = site.last_beat()
    at_s: float = beat["at_s"]
    return all(beat.get(f"{query}/lag") == 0 for query in QUERIES) and at_s > time.time() - 15


def _terminate(site: Site) -> None:
    run = site.live_run()["id"]
    note = site.note_event("terminate", run=run)
    began = time.monotonic()
    answer = site.ui.ask(TERMINATE, runIds=[run], terminatePolicy="SAFE_TERMINATE")
    note["answer"] = answer["terminateRuns"]["terminateRunResults"]
    site.wait(lambda: site.ui.run(run)["status"] in ENDED, "the live run has ended")
    note["healed_s"] = round(time.monotonic() - began, 1)
    note["jvms_left"] = site.ui.jvms()

    def supervised() -> bool:
        ticks = site.ui.ticks(SUPERVISOR)
        since_s = site.began_s + note["at_s"]
        return len([tick for tick in ticks if tick["timestamp"] > since_s and not tick["error"]]) > 2

    site.wait(supervised, "the supervisor has polled the terminated run")
    note["run_after"] = site.live_run()["id"]


def _verify(site: Site) -> dict[str, Any]:
    """Compare the whole output with all sent bids, and check that injected errors are found."""
    versions = [note["version"] for note in site.story if note["what"] in ("history", "refresh")]
    histories = {v: site.folder / "histories" / str(number) for number, v in enumerate(versions)}
    sent, records = site.feeder.sent_bids(), read_delivered(site.servers, ENRICHED)
    found = check_delivery(sent, records, histories)
    values = list(read_values(site.servers, HIGHEST))
    highest = verify.compare_highest(
        verify.expected_highest(sent), verify.rows_from_json(values, verify.HIGHEST)
    )
    dead_letters = set(read_values(site.servers, DEAD_LETTERS))
    spoiled = _check_spoiled(sent, records, histories)
    wrong = sorted(set(site.feeder.refused) ^ dead_letters)
    return {
        "answer": asdict(found) | {"repeats": found.repeats},
        "highest": asdict(highest),
        "dead_letters": {"sent": len(site.feeder.refused), "arrived": len(dead_letters), "wrong": len(wrong)},
        "spoiled": {
            name: [fault for fault, count in asdict(each).items() if fault in OUTPUT_ERRORS and count]
            for name, each in spoiled.items()
        },
        "ok": found.complete_and_right
        and highest.nothing_lost_or_wrong
        and not wrong
        and not any(each.complete_and_right for each in spoiled.values()),
    }


def _check_spoiled(sent: pa.Table, records: pa.Table, histories: Mapping[str, Path]) -> dict[str, Delivery]:
    """The results of checking outputs with one injected error each; none may be complete and right."""
    bids = sent.slice(max(sent.num_rows - MUTANT_BIDS, 0))
    first = pc.min(bids["bid_id"])
    mine = records.filter(pc.greater_equal(records["bid_id"], first))
    last = mine.num_rows - 1
    one = pc.equal(mine["bid_id"], mine["bid_id"][last])

    def change(column: str, value: Any) -> pa.Table:
        changed = pc.if_else(one, pa.scalar(value, mine.schema.field(column).type), mine[column])
        return mine.set_column(mine.schema.get_field_index(column), mine.schema.field(column), changed)

    again = mine.slice(last)
    twice = again.set_column(
        again.schema.get_field_index("flowcore_id"), "flowcore_id", pa.array(["bids:9:9:9"])
    )
    older = next(iter(histories))
    check: Callable[[pa.Table], Delivery] = lambda table: check_delivery(bids, table, histories)  # noqa: E731
    return {
        "one record dropped": check(mine.filter(pc.invert(one))),
        "one record names an older version": check(change("version", older)),
        "one record names a version that never was": check(change("version", "20260101T000000-00000000")),
        "one record has another price": check(change("price", -1.0)),
        "one record twice, with another flowcore-id": check(pa.concat_tables([mine, twice])),
    }


def _remaining_processes(home: Path) -> dict[int, str]:
    """Processes of Dagster that exist a minute after its servers ended."""
    end = time.monotonic() + 60
    while (left := processes_of(home)) and time.monotonic() < end:
        time.sleep(1.0)
    return left


def _are_leases_free(state: Path) -> bool:
    """Whether all leases are free, so that the queries could start."""
    try:
        with Leases() as leases:
            for query in QUERIES:
                leases.take(state / "auctions" / "checkpoints" / query)
    except FlowcoreError as error:
        click.echo(f"a lease is held: {error}", err=True)
        return False
    return True


def _show(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(found))
        return
    click.echo(f"endurance: {found['workload']}\nmachine: {found['machine']}\ncommit: {found['commit']}")
    for event in found["events"]:
        click.echo(f"  {event['at_s']:>7.1f} s {event['what']}, healed in {event.get('healed_s', '-')} s")
        for place in event["read"][:4]:
            click.echo(f"             {place[:150]}")
    for name in ("answer", "highest", "dead_letters", "processes_left", "leases_free", "runs_not_ended"):
        click.echo(f"  {name}: {found[name]}")
    click.echo("complete, right and readable" if found["ok"] else "WRONG")
