"""Transcripts: YAML scripts of steps for one operator, with the expected outputs of each step.

The README beside the files defines their format. To add a kind (``operator.kind`` in the file), write a
runner (see `runner.Runner`) and register it in `kinds.KINDS`. A runner

- performs the action of one step (``"in"``, ``[[k, 1, 5]]``) and returns what it observed under the README's
  names of expectations: ``{"out": [...], "current_ms": 4}``;
- may leave out the names in `replay.NOTHING_WHEN_MISSING` that have nothing to show, and no others;
- raises `runner.Refused` with the README's word (``Refused("no-timestamp")``), and changes nothing, where the
  README says that a step is refused.

``min`` and ``max`` are already integers when a runner gets them. `replay` compares; a runner never sees the
expectations.
"""

from flowcore.testing.transcripts.load import Transcript, load
from flowcore.testing.transcripts.replay import Outcome, replay_transcript
from flowcore.testing.transcripts.runner import Refused, Runner, TranscriptKind

__all__ = ["Outcome", "Refused", "Runner", "Transcript", "TranscriptKind", "load", "replay_transcript"]
