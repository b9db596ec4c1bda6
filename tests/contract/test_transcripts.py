"""Every transcript of every kind that can be replayed agrees, step by step.

They are read from the folder ``shared`` beside the checkout if it is there, else from the copy here. The
folder ``variants`` has more on the same themes: late sessions, the ends of time, sliding windows late for
some of their panes, evictors, continuous triggers.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import replace
from pathlib import Path

import pytest

import flowcore.testing.transcripts as package
from flowcore.testing.transcripts import Runner, Transcript, load, replay_transcript
from flowcore.testing.transcripts.kinds import KINDS

COPY = Path(__file__).parent / "transcripts"
SHARED = Path(__file__).parents[3] / "shared" / "transcripts"
FOLDER = SHARED if SHARED.is_dir() else COPY

VARIANTS = Path(__file__).parent / "variants"

ALL = [load(path) for folder in (FOLDER, VARIANTS) for path in sorted(folder.glob("*.yaml"))]
REPLAYED = [transcript for transcript in ALL if transcript.kind in KINDS]
CLAIMED = {
    "backlog": 1,
    "bundle": 1,
    "checkpoint-interval": 3,
    "flush": 18,
    "join": 64,
    "serializer": 6,
    "session-merge": 6,
    "watermarks": 13,
    "window": 44 + 30,
}
"""The least number of transcripts of each kind."""


@pytest.mark.parametrize("transcript", REPLAYED, ids=lambda transcript: transcript.path.stem)
def test_transcript_agrees(transcript: Transcript) -> None:
    """Each step shows exactly what is expected."""
    outcome = replay_transcript(transcript)

    assert outcome.disagreement is None
    assert outcome.steps == len(transcript.steps)


JOINS = [each for each in REPLAYED if each.kind == "join"]


@pytest.mark.parametrize("transcript", JOINS, ids=lambda transcript: transcript.path.stem)
def test_transcript_of_a_join_agrees_with_restarts_between_all_steps(transcript: Transcript) -> None:
    """Nothing is only in the memory of a worker."""
    steps = tuple(each for step in transcript.steps for each in (step, {"restart": True}))

    assert replay_transcript(replace(transcript, steps=steps)).disagreement is None


@pytest.mark.parametrize("kind", CLAIMED)
def test_transcripts_of_a_claimed_kind_are_replayed(kind: str) -> None:
    """All files of this kind are replayed, and there are no fewer than before."""
    replayed = [transcript.path for transcript in REPLAYED if transcript.kind == kind]

    assert len(replayed) >= CLAIMED[kind]


def test_transcripts_claim_every_kind_that_has_a_runner() -> None:
    """A runner that is not registered would run nothing."""
    modules = [
        importlib.import_module(f"{package.__name__}.{module.name}")
        for module in pkgutil.iter_modules(package.__path__)
    ]
    written = {
        member
        for module in modules
        if "live_" not in module.__name__ and not module.__name__.endswith("on_spark")
        for member in vars(module).values()
        if isinstance(member, type) and hasattr(member, "act") and member is not Runner
    }

    assert written == {kind.build for kind in KINDS.values()}
    assert KINDS.keys() == CLAIMED.keys()


@pytest.mark.skipif(FOLDER == COPY, reason="there is no folder shared/transcripts beside the checkout")
def test_transcripts_are_copied_unchanged() -> None:
    """The copy is the contract."""
    given = {path.name: path.read_bytes() for path in SHARED.iterdir()}

    assert {path.name: path.read_bytes() for path in COPY.iterdir()} == given
