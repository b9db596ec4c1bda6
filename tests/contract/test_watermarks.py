"""Every transcript of kind ``watermarks`` agrees with the pure logic, step by step."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowcore.testing.transcripts import Transcript, load, replay_transcript

FOLDER = Path(__file__).parent / "transcripts"
TRANSCRIPTS = [t for t in map(load, sorted(FOLDER.glob("*.yaml"))) if t.kind == "watermarks"]


def test_watermark_transcripts_are_found() -> None:
    """An empty folder would agree with anything."""
    assert len(TRANSCRIPTS) >= 13


@pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=lambda transcript: transcript.path.stem)
def test_watermarks_do_what_the_transcript_says(transcript: Transcript) -> None:
    """Each step shows exactly what is expected."""
    outcome = replay_transcript(transcript)

    assert outcome.disagreement is None
    assert outcome.steps == len(transcript.steps)
