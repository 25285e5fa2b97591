"""Are the numbers right? Time that is put into one place shows there, and memory that is taken for a while shows for that while."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from paceline.bench import memory, summary, turns
from paceline.bench.lineup import Lineup
from paceline.bench.runs import Decoded
from paceline.bench.settings import Settings
from paceline.bench.suites import Prompt
from paceline.drafters.lookup import LookupDrafter

from .conftest import lined_up

Make = Callable[..., Settings]
PAUSE = 0.02


def paused(run: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        time.sleep(PAUSE)
        return run(*arguments, **named)

    return call


def shares(found: Decoded) -> tuple[float, float, float]:
    """Seconds of the target's forwards, of a draft model's, and of all else."""
    row = {"target_seconds": found.target_seconds, "draft_seconds": found.draft_seconds}
    parts = summary._time_share([row], found.seconds)
    return tuple(parts[k] * found.seconds for k in ("target", "draft", "other"))  # type: ignore[return-value]


def lookup(settings: Make) -> Lineup:
    return lined_up(settings(methods=("lookup",)))


def test_time_in_a_drafter_without_a_model_is_outside_of_forwards(settings: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    (run,) = lookup(settings).runs
    monkeypatch.setattr(LookupDrafter, "propose", paused(LookupDrafter.propose))
    found = run.decode([[5, 6, 7, 5, 6]], [12])
    target, draft, other = shares(found)
    least = PAUSE * found.target_forwards
    assert other >= least, f"{other:.3f} s outside, {least:.3f} s were spent drafting"
    assert (draft, target + draft + other) == (0, pytest.approx(found.seconds))


def test_time_in_the_model_is_in_forwards_and_nowhere_else(settings: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    lineup = lookup(settings)
    (run,) = lineup.runs
    plain = shares(run.decode([[5, 6, 7, 5, 6]], [12]))[2]
    lineup.target.model.register_forward_pre_hook(lambda *_: time.sleep(PAUSE))
    found = run.decode([[5, 6, 7, 5, 6]], [12])
    target, _, other = shares(found)
    assert target >= PAUSE * found.target_forwards
    assert other < plain + PAUSE * found.target_forwards / 2, f"{other:.3f} s outside, {plain:.3f} s without the pause"


def test_the_peak_is_that_of_the_block_and_not_of_what_was_before() -> None:
    size = 96 << 20
    before = memory.lifetime_mb()
    with memory.watch() as large:
        held = bytearray(b"x" * size)
        del held
    with memory.watch() as small:
        pass
    assert large.mb - small.mb > size / 2**20 * 0.8, f"{large.mb:.0f} MB and {small.mb:.0f} MB"
    assert memory.lifetime_mb() >= max(before, large.mb - 0.1), "the mark of the process' whole life is never set back"


def test_a_second_turn_follows_the_targets_own_answer_to_the_first(settings: Make) -> None:
    lineup = lined_up(settings(methods=("none",)))
    both, single = Prompt("both", "t", ("the rain falls", "and then?", "why?")), Prompt("single", "t", ("a bird sings",))
    first, second, other = turns.follow_up(lineup.target, [both, single], 2, 8, lambda _: None)
    assert (first, other, second.id, second.turns) == (both, single, "both#2", both.turns)
    from paceline.bench.run import encode_all

    tokens = lineup.runs[0].decode(encode_all(lineup.target, [both]), [8]).outputs[0]
    assert second.answers == (lineup.target.tokenizer.decode(tokens, skip_special_tokens=True),)
    shown = lineup.target.tokenizer.decode(encode_all(lineup.target, [second])[0])
    assert shown == f"<|user|>the rain falls<|end|><|user|>{second.answers[0]}<|end|><|user|>and then?<|end|><|assistant|>"
