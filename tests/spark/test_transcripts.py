"""Transcripts agree on Spark too, where each is a live flow and each step is a micro-batch."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from flowcore.kafka.broker import EmbeddedBroker
from flowcore.testing.transcripts import Outcome, Transcript, load, replay_transcript
from flowcore.testing.transcripts.kinds import NOT_LIVE
from flowcore.testing.transcripts.live_flow import LiveEngine
from flowcore.testing.transcripts.on_spark import AT_ONCE, kinds_on

CONTRACT = Path(__file__).parents[1] / "contract"
ALL = [
    load(path)
    for folder in ("transcripts", "variants")
    for path in sorted((CONTRACT / folder).glob("*.yaml"))
]
ATOMIC_STEP = "tumbling-refused-records-change-nothing"
"""A live flow refuses a record alone: the other records of its step count."""
LIVE = [each for each in ALL if each.kind not in NOT_LIVE and each.path.stem != ATOMIC_STEP]
ONE_IN = int(os.environ.get("FLOWCORE_TRANSCRIPTS_ONE_IN", "40"))
"""A live flow takes seconds of two processors; `deploy/check replay` runs all transcripts."""
REPLAYED = [
    each
    for kind in dict.fromkeys(each.kind for each in LIVE)
    for each in [each for each in LIVE if each.kind == kind][::ONE_IN]
]


@pytest.fixture(scope="module")
def outcomes(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> dict[Path, Outcome]:
    """Outcomes of the requested transcripts, replayed concurrently."""
    chosen = [
        item.callspec.params["transcript"] for item in request.session.items if item.module is request.module
    ]
    with EmbeddedBroker(heap_mib=256) as broker, ThreadPoolExecutor(AT_ONCE) as threads:
        engine = LiveEngine(spark, broker.bootstrap_servers, tmp_path_factory.mktemp("replay"))
        with engine.shared_workers():
            kinds = kinds_on(engine)
            found = threads.map(lambda transcript: replay_transcript(transcript, kinds), chosen)
            return {transcript.path: outcome for transcript, outcome in zip(chosen, found, strict=True)}


@pytest.mark.parametrize("transcript", REPLAYED, ids=lambda transcript: transcript.path.stem)
def test_transcript_agrees_on_spark(transcript: Transcript, outcomes: dict[Path, Outcome]) -> None:
    """Each step of a transcript has the recorded outcome."""
    outcome = outcomes[transcript.path]

    assert outcome.disagreement is None
    assert outcome.steps == len(transcript.steps)
