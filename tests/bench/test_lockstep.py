"""Methods that take turns at every round."""

from __future__ import annotations

import time
from typing import Any

import pytest

from paceline.bench import runs
from paceline.bench.journal import Journal
from paceline.bench.run import encode_all
from paceline.bench.runs import Decoding, MethodRun, decode_in_step
from paceline.clock import Stopwatch

from .conftest import lined_up
from .test_run import PROMPTS, Make, line, measure

METHODS = ("none", "lookup", "draft_model", "auto")


def test_a_stopwatch_stands_still_between_its_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [10.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    watch = Stopwatch()
    for passed in (2.0, 3.0):
        with watch.running():
            now[0] += passed
            during = watch()
        now[0] += 100.0
    assert (during, watch()) == (5.0, 5.0)


@pytest.mark.parametrize("batch_size", [1, 2])
def test_what_is_decoded_and_counted_is_the_same_as_one_after_another(settings: Make, draft_model: str, batch_size: int) -> None:
    """But for `auto`, whose forwards depend on time."""
    found = [
        measure(settings(methods=METHODS, draft_model=draft_model, max_new_tokens=20, batch_size=batch_size, lockstep=lockstep))
        for lockstep in (False, True)
    ]
    counted = ("tokens", "target_forwards", "prefill_forwards", "draft_forwards", "rounds", "mean_acceptance_length", "identical")
    for method in METHODS:
        apart, together = (line(one, method) for one in found)
        names = ("tokens", "prefill_forwards", "identical") if method == "auto" else counted
        assert {n: apart[n] for n in names} == {n: together[n] for n in names}, method


def test_whose_turn_it_is_goes_by_how_far_each_has_come(settings: Make, draft_model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lineup = lined_up(settings(methods=("none", "draft_model"), draft_model=draft_model))
    first = [run for run in lineup.runs if isinstance(run, MethodRun)]
    right, apart = Decoding.go_on, []
    decodings: list[Decoding] = []

    def go_on(self: Decoding, **how: Any) -> None:
        right(self, **how)
        decodings.extend([self] * (self not in decodings))
        apart.append(max(d.tokens for d in decodings) - min(d.tokens for d in decodings))

    monkeypatch.setattr(Decoding, "go_on", go_on)
    decode_in_step(first, encode_all(lineup.target, PROMPTS[:1]), [24])
    assert max(apart) <= 7, f"tokens between the first and the last: {apart}"
    assert len(apart) > 24, "two methods, a round at a time"


def test_each_is_charged_for_its_own_rounds_only(settings: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """And an adaptive drafter sees no others' rounds in the time that its own take."""
    lineup = lined_up(settings(methods=("none", "lookup", "auto")))
    right, drafters = runs.engine.stream, []

    def slow(target: Any, drafter: Any, *rest: Any) -> Any:
        drafters.append(drafter)
        for round_ in right(target, drafter, *rest):
            time.sleep(0.02 if type(drafter).__name__ == "NoDrafter" else 0.0)
            yield round_

    monkeypatch.setattr(runs.engine, "stream", slow)
    ours = [run for run in lineup.runs if isinstance(run, MethodRun)]
    none, lookup, auto = decode_in_step(ours, encode_all(lineup.target, PROMPTS[:1]), [24])
    assert none.seconds > 24 * 0.02 > lookup.seconds
    assert none.target_seconds < none.seconds
    assert auto.seconds < 24 * 0.02
    assert drafters[2].clock() == auto.seconds


def test_all_memory_is_given_back(settings: Make, draft_model: str) -> None:
    lineup = lined_up(settings(methods=METHODS, draft_model=draft_model))
    ours = [run for run in lineup.runs if isinstance(run, MethodRun)]
    lineup.target.cache.open(64)  # as one leaves it that was interrupted
    decode_in_step(ours, encode_all(lineup.target, PROMPTS[:2]), [8, 8])
    assert lineup.target.cache.nbytes == 0


def test_a_turn_is_a_forward_of_all_sequences(settings: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    lineup = lined_up(settings(methods=("none", "lookup"), batch_size=2))
    right, turns = Decoding.go_on, []
    monkeypatch.setattr(Decoding, "go_on", lambda self: turns.append(self) or right(self))
    ours = [run for run in lineup.runs if isinstance(run, MethodRun)]
    made = decode_in_step(ours, encode_all(lineup.target, PROMPTS), [9] * len(PROMPTS))
    assert len(turns) == sum(one.target_forwards for one in made)


def test_those_with_the_same_prompts_go_together(settings: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """And others do not, such as those with other batch sizes. To warm up each decodes alone."""
    together: list[list[tuple[str, int]]] = []

    def watched(ours: list[MethodRun], prompts: list[list[int]], limits: list[int]) -> Any:
        together.append([(run.name, len(prompts)) for run in ours])
        return decode_in_step(ours, prompts, limits)

    monkeypatch.setattr("paceline.bench.run.decode_in_step", watched)
    measure(settings(methods=("none", "lookup"), lockstep=True, max_new_tokens=4), batch_sizes=(1, 2))
    single, batched = {"none batch=1", "lookup batch=1"}, {"none batch=2", "lookup batch=2"}
    assert [({name for name, _ in ones}, ones[0][1]) for ones in together if ones[0][1] > 1] == [(batched, len(PROMPTS))]
    assert [{name for name, _ in ones} for ones in together if ones[0][1] == 1] == [single] * len(PROMPTS)


def test_one_that_was_cut_short_goes_on_with_those_that_are_missing(settings: Make) -> None:
    asked = settings(methods=("none", "lookup"), lockstep=True, max_new_tokens=8)
    whole = Journal(None, "")
    measure(asked, journal=whole)
    rest = Journal(None, "")
    rest.rows.extend(whole.rows[:3])
    measure(asked, journal=rest)
    told = [[(r["run"], r["group"], [o["tokens"] for o in r["outputs"]]) for r in journal.rows] for journal in (whole, rest)]
    assert sorted(told[0]) == sorted(told[1])
