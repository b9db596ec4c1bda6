"""Transcripts: scripts of steps and of what an operator must show in each; see `replay`.

A transcript's format is told by the README beside the files. Here is how one is run, and how a kind
(``operator.kind`` in the file) is added: one module per kind, which holds

- a runner, a class with one method (`runner.Runner`)::

      def act(self, action: str, argument: Any) -> Mapping[str, Any]

  It does one step's action (``"in"``, ``[[k, 1, 5]]``) and returns what was seen, under the names
  that the README gives to expectations: ``{"out": [...], "current_ms": 4}``. It never sees what is
  expected. Of the names in `replay.NOTHING_WHEN_MISSING` it may leave out those with nothing to
  show; all others that it knows it always gives. Where the README says that a step is refused, it
  raises `runner.Refused` with the README's word (``Refused("no-timestamp")``) and changes nothing;
- ``KIND``, a `runner.Kind`: the name, the actions beyond the common ones, a function that builds a
  runner from the ``operator`` section (and raises `runner.Refused` where building must fail), and,
  only if equality is not enough for its expectations, an ``agrees`` function;
- one line in `kinds.KINDS`.

``min`` and ``max`` are integers already when a runner sees them. Comparing is done once, in `replay`.
"""

from __future__ import annotations

from flowcore.testing.transcripts.load import Transcript, load
from flowcore.testing.transcripts.replay import Outcome, replay_transcript
from flowcore.testing.transcripts.runner import Refused, Runner, TranscriptKind

__all__ = ["Outcome", "Refused", "Runner", "Transcript", "TranscriptKind", "load", "replay_transcript"]
