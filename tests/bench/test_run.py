"""Runs: their order, their independence, and what is compared with what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from paceline import methods
from paceline.bench import report, suites
from paceline.bench.compare import compare, first_difference, target_logits
from paceline.bench.grid import Grid
from paceline.bench.journal import Journal
from paceline.bench.lineup import Lineup
from paceline.bench.peer_run import PeerRun
from paceline.bench.run import encode_all, jobs, run_all
from paceline.bench.runs import Decoded, MethodRun
from paceline.bench.settings import Settings
from paceline.bench.suites import Prompt
from paceline.errors import IncompatibleRule, InvalidRequest
from paceline.rules.match import match
from paceline.rules.walk import Node, Step

from .conftest import ROWS, lined_up

PROMPTS = [Prompt(r["id"], r["task"], tuple(r["turns"])) for r in ROWS]
Make = Callable[..., Settings]


def measure(
    settings: Settings,
    lineup: Lineup | None = None,
    journal: Journal | None = None,
    prompts: list[Prompt] = PROMPTS,
    **axes: Any,
) -> dict[str, Any]:
    lineup, journal = lineup or lined_up(settings, **axes), journal or Journal(None, "")
    encoded = encode_all(lineup.target, prompts)
    run_all(lineup, settings, prompts, encoded, journal)
    return report.build(lineup, Grid(settings, **axes) if axes else Grid.of(settings), prompts, encoded, journal.rows)


def line(found: dict[str, Any], run: str) -> dict[str, Any]:
    (only,) = [r for r in found["runs"] if r["run"] == run]
    return dict(only)


class Named:
    """Enough of a run to be put in order."""

    def __init__(self, name: str, batch_size: int = 1) -> None:
        self.name, self.batch_size = name, batch_size


def test_a_run_is_warmed_up_with_one_batch(settings: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    right, calls = MethodRun.decode, []

    def decode(self: MethodRun, prompts: Sequence[list[int]], limits: Sequence[int]) -> Decoded:
        calls.append((len(prompts), max(limits)))
        return right(self, prompts, limits)

    monkeypatch.setattr(MethodRun, "decode", decode)
    measure(settings(methods=("none",), batch_size=2, max_new_tokens=12))
    assert calls == [(2, 8), (3, 12)]


def test_the_order_of_runs_rotates_from_prompt_to_prompt() -> None:
    planned = [(j.group, j.run.name) for j in jobs([Named(n) for n in "abc"], 3, 1, 1)]  # type: ignore[misc]
    assert planned == [(0, "a"), (0, "b"), (0, "c"), (1, "b"), (1, "c"), (1, "a"), (2, "c"), (2, "a"), (2, "b")]


def test_a_batch_is_decoded_at_once_by_some_runs_and_one_by_one_by_others() -> None:
    planned = list(jobs([Named("batch", 2), Named("single")], 8, 2, 1))  # type: ignore[list-item]
    assert [j.members for j in planned if j.run.name == "batch"] == [(0, 1, 2, 3, 4, 5), (6, 7)], "three batches make a group"
    assert [j.members for j in planned if j.run.name == "single"] == [(i,) for i in range(8)]
    assert len({j.key for j in planned}) == len(planned)


def test_batches_by_task_have_figures_by_task(settings: Make) -> None:
    mixed, apart = (measure(settings(methods=("none",), batch_size=2, batch_by_task=chosen)) for chosen in (False, True))
    assert not mixed["runs"][0]["by_task"]
    assert mixed["runs"][0]["tokens"] == apart["runs"][0]["tokens"]
    assert apart["runs"][0]["by_task"].keys() == {p.group for p in PROMPTS}


def test_a_decode_does_not_profit_from_the_one_before(settings: Make, draft_model: str) -> None:
    lineup = lined_up(settings(methods=("draft_model",), draft_model=draft_model))
    (run,) = lineup.runs
    (tokens,) = encode_all(lineup.target, PROMPTS[:1])
    first, second = (run.decode([tokens], [24]) for _ in range(2))
    assert (first.outputs, first.draft_forwards, first.prefill_forwards) == (second.outputs, second.draft_forwards, second.prefill_forwards)
    assert first.prefill_forwards == 1


def test_decodes_do_not_pile_up_memory(settings: Make, draft_model: str) -> None:
    lineup = lined_up(settings(methods=("draft_model",), draft_model=draft_model))
    (run,) = lineup.runs
    assert isinstance(run, MethodRun)
    assert run._draft is not None
    held = []
    for _ in range(3):
        run.decode(encode_all(lineup.target, PROMPTS[:1]), [24])
        held.append((lineup.target.cache.nbytes, run._draft.cache.nbytes))
    assert held[0] == held[1] == held[2]


def test_only_the_first_turn_is_decoded_in_the_chat_template(settings: Make) -> None:
    lineup = lined_up(settings(methods=("none",)))
    (tokens,) = encode_all(lineup.target, PROMPTS[:1])
    assert lineup.target.tokenizer.decode(tokens) == f"<|user|>{PROMPTS[0].turns[0]}<|end|><|assistant|>"


def test_a_prompt_beyond_the_context_is_named(settings: Make) -> None:
    lineup = lined_up(settings(methods=("none",)))
    with pytest.raises(InvalidRequest, match=r"prompt long has .* tokens and the context of .* is 256"):
        encode_all(lineup.target, [Prompt("long", "t", ("rain " * 300,))])


def test_near_the_end_of_the_context_all_runs_stop_alike(settings: Make) -> None:
    chosen = settings(methods=("none", "lookup"), peers=("transformers",), max_new_tokens=60)
    lineup = lined_up(chosen)
    prompt = Prompt("long", "own/long", ("the rain falls on the quiet lake " * 24,))
    room = 256 - len(encode_all(lineup.target, [prompt])[0])
    assert 10 < room < 60
    found = measure(chosen, lineup, prompts=[prompt])
    assert {r["identical"] for r in found["runs"]} == {1}
    assert {len(o["tokens"]) for r in found["rows"] for o in r["outputs"]} == {room}


def test_a_rule_that_does_not_fit_its_drafter_is_refused_before_the_first_token(settings: Make) -> None:
    with pytest.raises(IncompatibleRule, match="rule rejection"):
        lined_up(settings(methods=("none", "lookup/rejection")))


def test_lossless_methods_and_peers_agree_with_transformers(settings: Make, draft_model: str) -> None:
    every = ("transformers", "transformers-lookup", "transformers-assisted", "transformers-early-exit")
    found = measure(settings(methods=("none", "lookup", "draft_model", "lookup+draft_model"), peers=every, draft_model=draft_model))
    assert found["differences"] == []
    assert {r["run"]: (r["identical"], r["of"], r["reference"]) for r in found["runs"]} == {
        r["run"]: (3, 3, "transformers") for r in found["runs"]
    }


def _wrong(node: Node, rng: Any) -> Step:
    """The second best token wherever the best one is an even id."""
    row = node.target_probs.logits[node.index]
    best, second = row.topk(2).indices.tolist()
    return Step(None, second if best % 2 == 0 else best)


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> str:
    """A rule that says it is lossless and is not."""
    rule = replace(match, name="broken", decide=_wrong, greedy=_wrong)
    monkeypatch.setitem(methods.RULES, "broken", methods.Entry(lambda: rule, "wrong on purpose"))
    return "lookup/broken"


@pytest.mark.parametrize("peers", [(), ("transformers",)])
def test_a_broken_lossless_method_is_counted_as_different_with_its_margin(settings: Make, broken: str, peers: tuple[str, ...]) -> None:
    chosen = settings(methods=("none", broken), peers=peers)
    lineup = lined_up(chosen)
    found = measure(chosen, lineup)
    assert (line(found, broken)["identical"], line(found, broken)["of"]) == (0, 3)
    assert [d["prompt"] for d in found["differences"]] == ["rain", "bird", "lake"]
    assert any(f"{broken} differs from {'transformers' if peers else 'none'} on 3 of 3 prompts" in r for r in found["remarks"])
    encoded = dict(zip(["rain", "bird", "lake"], encode_all(lineup.target, PROMPTS), strict=True))
    plain = {o["prompt"]: o["tokens"] for r in found["rows"] if r["run"] == "none" for o in r["outputs"]}
    for d in found["differences"]:
        at = d["position"]
        assert plain[d["prompt"]][at] == d["reference_token"] != d["token"]
        row = target_logits(lineup.target)([*encoded[d["prompt"]], *plain[d["prompt"]][:at]])
        assert d["logit_margin"] == pytest.approx(float(row.max() - row.topk(2).values[1]), abs=1e-4)
        assert d["logit_margin"] > 0


def test_a_lossy_rule_is_not_compared(settings: Make, broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lossy = replace(match, name="broken", decide=_wrong, greedy=_wrong, lossless=False)
    monkeypatch.setitem(methods.RULES, "broken", methods.Entry(lambda: lossy, "lossy"))
    found = measure(settings(methods=("none", broken)))
    assert (line(found, broken)["lossless"], line(found, broken)["identical"], found["differences"]) == (False, None, [])


def test_the_first_difference_counts_and_an_early_end_is_one() -> None:
    assert first_difference([1, 2, 3], [1, 2, 3]) is None
    assert first_difference([1, 2, 3], [1, 5, 4]) == 1
    assert first_difference([1, 2, 3], [1, 2]) == 2
    assert first_difference([1], [1, 2]) == 1


def test_one_repeat_that_differs_makes_its_prompt_differ() -> None:
    seen: list[Sequence[int]] = []

    def logits(tokens: Sequence[int]) -> torch.Tensor:
        seen.append(list(tokens))
        return torch.arange(10.0)

    same, found = compare({"p": [[4, 5, 6]], "q": [[1]]}, {"p": [[4, 5, 6], [4, 7, 6]], "q": [[1], [1]]}, {"p": [8, 9], "q": [8]}, logits)
    assert same == 1
    assert found == [{"prompt": "p", "position": 1, "reference_token": 5, "token": 7, "logit_margin": -2.0}]
    assert seen == [[8, 9, 4]]


def test_a_peer_that_fails_on_the_way_is_skipped_with_the_reason_and_the_rest_goes_on(
    settings: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, calls = PeerRun.decode, []

    def failing(self: PeerRun, prompts: Sequence[list[int]], limits: Sequence[int]) -> Decoded:
        calls.append(self.name)
        if self.name == "transformers-lookup" and calls.count(self.name) == 3:
            raise RuntimeError("out of luck\nat line 7")
        return right(self, prompts, limits)

    monkeypatch.setattr(PeerRun, "decode", failing)
    found = measure(settings(peers=("transformers", "transformers-lookup")))
    skipped = line(found, "transformers-lookup")
    assert skipped["skipped"] == "RuntimeError: out of luck"
    assert skipped["tokens"] is None
    assert line(found, "lookup")["identical"] == 3
    assert "transformers-lookup was skipped: RuntimeError: out of luck" in found["remarks"]


def test_sampled_outputs_are_not_compared(settings: Make) -> None:
    found = measure(settings(temperature=1.0, seed=4, peers=("transformers",)))
    assert {r["identical"] for r in found["runs"]} == {None}
    assert found["differences"] == []


def test_rows_of_an_earlier_process_are_kept_and_only_the_others_are_decoded(settings: Make) -> None:
    chosen = settings(methods=("none", "lookup"))
    whole = Journal(None, "")
    measure(chosen, journal=whole)
    partial = Journal(None, "")
    partial.rows = list(whole.rows[:4])
    found = measure(chosen, journal=partial)
    assert partial.rows[:4] == whole.rows[:4]
    assert [(r["group"], r["run"]) for r in partial.rows] == [(r["group"], r["run"]) for r in whole.rows]
    assert {r["of"] for r in found["runs"]} == {3}


def test_what_is_slower_than_it_should_be_is_said() -> None:
    common = {"lossless": True, "identical": None, "of": 0, "reference": None}
    lines = [
        {"run": "none", "method": "none", "rule": "match", "speedup_vs_none": 1.0, "speedup_vs_transformers": 0.9, **common},
        {"run": "lookup", "method": "lookup", "rule": "match", "speedup_vs_none": 0.8, "speedup_vs_transformers": 1.1, **common},
        {"run": "draft_model", "method": "draft_model", "rule": "match", "speedup_vs_none": 2.0, "speedup_vs_transformers": 1.9, **common},
        {"run": "transformers", "method": "transformers", "rule": None, "speedup_vs_none": 0.7, "speedup_vs_transformers": 1.0, **common},
    ]
    assert report.remarks(lines) == [
        "none is SLOWER than transformers here: 0.90x.",
        "lookup is SLOWER than plain decoding (none) here: 0.80x.",
    ]


def test_peers_that_were_skipped_for_one_reason_are_said_at_once() -> None:
    common = {"rule": None, "lossless": True, "identical": None, "speedup_vs_none": None, "speedup_vs_transformers": None}
    lines = [{"run": run, "method": run, "skipped": why, **common} for run, why in (("a", "x"), ("b", "y"), ("c", "x"))]
    assert report.remarks(lines) == ["a, c were skipped: x", "b was skipped: y"]


def test_a_machine_that_was_not_quiet_is_said() -> None:
    line = {
        "run": "none",
        "method": "none",
        "rule": "match",
        "lossless": True,
        "identical": 3,
        "of": 3,
        "speedup_vs_none": 1.0,
        "speedup_vs_transformers": None,
    }
    assert report.remarks([line | {"cores_used_by_others": 0.05}]) == []
    assert "up to 1.3 cores" in report.remarks([line | {"cores_used_by_others": 1.3}])[0]


def test_the_built_in_prompts_are_used_when_none_are_given() -> None:
    assert len(suites.choose(suites.read(), 1)) == 6


def test_the_settings_of_a_report_name_no_home_folder(settings: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    told = measure(settings(methods=("none",), prompts="/home/someone/p.jsonl"))["settings"]
    assert told["prompts"] == "~/p.jsonl"
    assert "someone" not in str(told)


def test_auto_takes_part_and_gives_the_text_of_plain_decoding(settings: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    lines = {line["run"]: line for line in measure(settings(methods=("none", "auto")))["runs"]}
    assert (lines["auto"]["identical"], lines["auto"]["rule"], lines["auto"]["lossless"]) == (lines["auto"]["of"], "match", True)
