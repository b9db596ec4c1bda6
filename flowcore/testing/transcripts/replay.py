"""Replay of transcripts: each step is run, and its observations are compared with the expectations."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowcore.errors import ConfigurationError, FlowcoreError
from flowcore.testing.transcripts.kinds import KINDS
from flowcore.testing.transcripts.load import Transcript, load
from flowcore.testing.transcripts.runner import COMMON_ACTIONS, Refused, Runner, TranscriptKind

__all__ = ["NOTHING_WHEN_MISSING", "Difference", "Outcome", "replay_transcript"]

NOTHING_WHEN_MISSING = ("out", "late", "dropped", "emits", "triggers", "into")
"""Expectations that mean "nothing" where a step does not name them; others are then not checked."""

_ROWS = ("out", "late")
_REMARKS = ("error", "note", "out_any_order")


@dataclass(frozen=True, slots=True)
class Difference:
    """The first observation that differs from its expectation.

    Attributes:
        step: The step's number from 1; 0 for building the operator.
        name: The expectation; ``error`` if it is about a refusal.
    """

    step: int
    action: str
    name: str
    expected: Any
    seen: Any


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one replay.

    Attributes:
        steps: The number of steps that agreed.
        difference: Why the next step did not agree; None if all agreed.
    """

    transcript: Transcript
    steps: int
    difference: Difference | None = None

    @property
    def passed(self) -> bool:
        return self.difference is None

    @property
    def disagreement(self) -> str | None:
        """The difference as a sentence."""
        if self.difference is None:
            return None
        each = self.difference
        where = f"{self.transcript.path.name} step {each.step} ({each.action})" if each.step else "building"
        if each.name == "error":
            return f"{where}: should be refused with {each.expected!r}, was refused with {each.seen!r}"
        return f"{where}: {each.name} should be {each.expected!r}, was {each.seen!r}"


def replay_transcript(transcript: Transcript | Path, kinds: Mapping[str, TranscriptKind] = KINDS) -> Outcome:
    """Run one transcript, up to the first step that does not agree.

    Raises:
        ConfigurationError: The file is not a transcript, its kind is not among ``kinds``, or a step does not
            have exactly one action.
    """
    if isinstance(transcript, Path):
        transcript = load(transcript)
    kind = kinds.get(transcript.kind)
    if kind is None:
        msg = (
            f"{transcript.path}: kind {transcript.kind!r} cannot be replayed here: nothing could be shown; "
            f"the kinds are {', '.join(kinds)}"
        )
        raise ConfigurationError(msg)
    try:
        runner = kind.build(transcript.operator)
    except Refused as refused:
        return Outcome(transcript, 0, _compare_refusal(0, "build", transcript.error, refused.word))
    try:
        return _run_steps(transcript, kind, runner)
    finally:
        kind.close(runner)


def _run_steps(transcript: Transcript, kind: TranscriptKind, runner: Runner) -> Outcome:
    if transcript.error is not None:
        return Outcome(transcript, 0, _compare_refusal(0, "build", transcript.error, None))
    for number, step in enumerate(transcript.steps, 1):
        difference = _run_step(transcript.path, number, kind, runner, step)
        if difference is not None:
            return Outcome(transcript, number - 1, difference)
    return Outcome(transcript, len(transcript.steps))


def _run_step(
    path: Path, number: int, kind: TranscriptKind, runner: Runner, step: Mapping[str, Any]
) -> Difference | None:
    actions = [name for name in step if name in COMMON_ACTIONS | kind.actions]
    if len(actions) != 1:
        msg = (
            f"{path.name} step {number} has {len(actions)} actions ({', '.join(actions) or 'none'}): "
            f"nothing could be done; write one of {', '.join(sorted(COMMON_ACTIONS | kind.actions))}"
        )
        raise ConfigurationError(msg)
    (action,) = actions
    try:
        seen = runner.act(action, step[action])
    except Refused as refused:
        return _compare_refusal(number, action, step.get("error"), refused.word)
    except FlowcoreError as error:
        return Difference(number, action, "success", expected=True, seen=str(error))
    if "error" in step:
        return _compare_refusal(number, action, step["error"], None)
    expectations = dict.fromkeys(NOTHING_WHEN_MISSING) | {
        name: expected for name, expected in step.items() if name != action and name not in _REMARKS
    }
    if step.get("out_any_order") and step.get("out") and kind.in_order:
        expectations["out"] = [{"any_order": step["out"]}]
    for name, expected in expectations.items():
        if not _agrees(kind, name, expected, seen):
            return Difference(number, action, name, expected, seen.get(name, "not shown"))
    return None


def _agrees(kind: TranscriptKind, name: str, expected: Any, seen: Mapping[str, Any]) -> bool:
    answer = kind.agrees(name, expected, seen)
    if answer is not None:
        return answer
    if name in NOTHING_WHEN_MISSING:
        expected, found = expected or None, seen.get(name) or None
        if name in _ROWS and expected and found:
            return (_equal_in_order if kind.in_order else _equal_rows)(expected, found)
        return _equals(expected, found)
    return name in seen and _equals(expected, seen[name])


def _equals(expected: Any, seen: Any) -> bool:
    """Whether two values are equal; a list equals a tuple, and ``1`` does not equal ``true``."""
    match expected, seen:
        case (bool(), _) | (_, bool()):
            return expected is seen
        case (list() | tuple(), list() | tuple()):
            return len(expected) == len(seen) and all(map(_equals, expected, seen))
        case (Mapping(), Mapping()):
            return expected.keys() == seen.keys() and all(
                _equals(expected[key], seen[key]) for key in expected
            )
        case _:
            return bool(expected == seen)


def _equal_rows(expected: Sequence[Sequence[Any]], seen: Sequence[Sequence[Any]]) -> bool:
    """Whether rows are equal as multisets; a row's window is compared only if one is expected."""
    left = list(seen)
    for row in sorted(expected, key=len, reverse=True):
        for index, candidate in enumerate(left):
            if _equals(row, candidate[: len(row)]):
                del left[index]
                break
        else:
            return False
    return not left


def _equal_in_order(expected: Sequence[Any], seen: Sequence[Any]) -> bool:
    """Whether lists are equal, where a group stands for its members in any order."""
    rest = list(seen)
    for item in expected:
        group = list(_flatten(item))
        head, rest = rest[: len(group)], rest[len(group) :]
        for member in group:
            found = next((index for index, one in enumerate(head) if _equals(member, one)), None)
            if found is None:
                return False
            del head[found]
    return not rest


def _flatten(item: Any) -> Iterator[Any]:
    if isinstance(item, Mapping) and item.keys() == {"any_order"}:
        for member in item["any_order"]:
            yield from _flatten(member)
    else:
        yield item


def _compare_refusal(
    number: int, action: str, expected: str | None, refused: str | None
) -> Difference | None:
    return None if expected == refused else Difference(number, action, "error", expected, refused)
