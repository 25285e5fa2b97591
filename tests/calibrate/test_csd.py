"""A correction memory from prompts: what is counted, that an interruption changes nothing, and that the file is used."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest

from paceline import engine, methods
from paceline.calibrate.csd import _remarks, _report, calibrate_csd
from paceline.calibrate.run import Pair, Plan
from paceline.errors import CheckpointMismatch, InvalidRequest
from paceline.rules import ledger, memory_file
from paceline.rules.memory import Memory, both_ways, pack
from paceline.train.prompts import Row

from .. import matrix
from .letters import PLAN, pair, prompts

quiet = lambda done, of: None  # noqa: E731


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("csd") / "memory.safetensors"
    return calibrate_csd(pair(), PLAN, prompts(), out, domain="letters", say=quiet), out


def test_the_memory_holds_the_first_mismatch_of_every_block_of_plain_decoding(made):
    want: Counter[int] = Counter()
    both = pair()
    for prompt in prompts():
        drafter, rule = methods.build("draft_model", both.target, methods.Options(draft_model=both.draft, num_speculative_tokens=3))
        seq = matrix.request(both.target.tokenizer(prompt.turns[0])["input_ids"], PLAN.max_new_tokens)
        for round_ in engine.stream(both.target, drafter, rule, [seq]):
            tree, last = round_.draft.tree, round_.path[-1]
            children = [tree.tokens[c] for c in tree.children(last)]
            if children and not round_.finish_reason:
                want.update([(tuple(children), round_.tokens[-1])])
    counts = memory_file.load(made[1]).counts
    assert sum(counts.values()) >= sum(want.values()) > 5, f"{sum(counts.values())} counted, {sum(want.values())} seen"
    allowed = {pack(child, token) for children, token in want for child in children}
    strangers = [k for k in counts if k not in allowed]
    assert len(strangers) <= len(prompts()), f"only the last round of a prompt may add others: {strangers}"


def test_the_report_says_what_a_threshold_would_nominate(made):
    report, out = made
    memory = memory_file.load(out)
    assert (report["rejections"], report["pairs"], report["prompts"]) == (memory.calibrated, len(memory.counts), len(prompts()))
    assert report["nominated"]["6"] == sum(c + memory.counts.get(both_ways(key)[1], 0) > 6 for key, c in memory.counts.items())
    assert memory.domain == "letters"


def test_the_share_of_rejections_is_that_of_pairs_known_from_other_prompts():
    seen = [Counter({pack(1, 2): 9, pack(3, 4): 1}), Counter({pack(1, 2): 3, pack(5, 6): 8}), Counter({pack(3, 4): 2, pack(1, 2): 1})]
    memory = Memory.calibration(sum(seen, Counter()), None)
    report = _report(memory, seen)
    assert report["nominated"] == {"0": 3, "1": 3, "2": 3, "3": 2, "6": 2, "12": 1}
    # of 24: pair (1, 2) was seen 4, 10 and 12 times in the other prompts, (3, 4) twice and once, (5, 6) never
    assert report["share_of_rejections"] == {"0": 16 / 24, "1": 14 / 24, "2": 13 / 24, "3": 13 / 24, "6": 4 / 24, "12": 0.0}


def test_in_the_report_a_pair_and_its_reverse_stand_for_each_other():
    seen = [Counter({pack(1, 2): 2}), Counter({pack(2, 1): 1})]
    report = _report(Memory.calibration(sum(seen, Counter()), None), seen)
    assert (report["nominated"]["2"], report["nominated"]["3"]) == (2, 0)
    assert (report["share_of_rejections"]["0"], report["share_of_rejections"]["1"]) == (1.0, 1 / 3)


@pytest.mark.parametrize(("share", "said"), [(0.05, ["are 5.0% of the rejections", "csd.min_count"]), (0.1, [])])
def test_a_memory_that_would_rescue_nothing_says_so(share, said):
    told = " ".join(_remarks(share))
    assert all(words in told for words in said)
    assert bool(told) == bool(said)


def test_the_rows_are_gone_when_the_memory_is_written(made):
    assert [p.name for p in made[1].parent.iterdir()] == ["memory.safetensors"]


class Stop(Exception):
    pass


def test_a_calibration_that_was_stopped_goes_on_to_the_same_memory(made, tmp_path):
    out, told = tmp_path / "memory.safetensors", []

    def stop(done, of):
        told.append((done, of))
        if done == 2:
            raise Stop

    with pytest.raises(Stop):
        calibrate_csd(pair(), PLAN, prompts(), out, domain="letters", say=stop)
    assert not out.exists()
    rows = out.with_name(out.name + ".rows.jsonl")
    rows.write_text(rows.read_text() + '{"run": "cut sho')  # as a crash leaves it
    told.clear()
    calibrate_csd(pair(), PLAN, prompts(), out, domain="letters", say=lambda *at: told.append(at))
    assert told[0] == (2, len(prompts())), "it began anew"
    assert memory_file.load(out) == memory_file.load(made[1])


def test_the_batch_size_changes_nothing(made, tmp_path):
    calibrate_csd(pair(), replace(PLAN, batch_size=3), prompts(), tmp_path / "m", domain="letters", say=quiet)
    assert memory_file.load(tmp_path / "m") == memory_file.load(made[1])


def test_an_earlier_memory_of_other_prompts_is_added_to(made, tmp_path):
    first, both = tmp_path / "first", tmp_path / "both"
    calibrate_csd(pair(), PLAN, prompts()[:2], first, domain="letters", say=quiet)
    report = calibrate_csd(pair(), PLAN, prompts()[2:], both, start=memory_file.load(first), say=quiet)
    assert memory_file.load(both) == memory_file.load(made[1]), "in two parts it is another memory than in one"
    assert (report["prompts"], report["rejections"]) == (len(prompts()) - 2, memory_file.load(made[1]).calibrated)


def test_a_memory_of_other_models_is_not_added_to(made, tmp_path):
    start = memory_file.load(made[1])
    start = replace(start, origin=replace(start.origin, vocab_size=7))
    with pytest.raises(CheckpointMismatch, match="vocabulary size is 7"):
        calibrate_csd(pair(), PLAN, prompts(), tmp_path / "m", start=start, say=quiet)


def test_rows_of_another_calibration_are_refused(tmp_path):
    def stop(done, of):
        if done:
            raise Stop

    with pytest.raises(Stop):
        calibrate_csd(pair(), PLAN, prompts(), tmp_path / "m", say=stop)
    with pytest.raises(InvalidRequest, match="other models, prompts or settings"):
        calibrate_csd(pair(), replace(PLAN, max_new_tokens=9), prompts(), tmp_path / "m", say=quiet)
    (tmp_path / "m.rows.jsonl").write_text(json.dumps({"id": 1}) + "\n")
    with pytest.raises(InvalidRequest, match="line 1: no row of ours"):
        calibrate_csd(pair(), PLAN, prompts(), tmp_path / "m", say=quiet)


def test_the_memory_rescues_on_the_pair_that_it_was_made_for(made):
    both = pair()
    options = methods.Options(
        draft_model=both.draft, memory=made[1], rule_settings={"csd.preset": "published", "csd.tau": 1e-6, "csd.min_count": 1}
    )
    drafter, rule = methods.build("draft_model/csd", both.target, options)
    seqs = [matrix.request(both.target.tokenizer(p.turns[0])["input_ids"], 60) for p in prompts()]
    found = ledger.pooled([ledger.summaries(s) for s in engine.generate(both.target, drafter, rule, seqs)])
    assert found["csd"]["altered"] > 0, f"{found}"


def test_other_drafters_have_a_memory_too(tmp_path):
    target = pair().target
    calibrate_csd(Pair(target, None), Plan("lookup", 30), [Row("a", "t", ("AaBbAaBbAaBb",))], tmp_path / "m", say=quiet)
    made = memory_file.load(tmp_path / "m")
    assert made.origin.draft == "lookup"
    methods.build("lookup/csd", target, methods.Options(memory=tmp_path / "m"))


def test_nonsense_in_the_plan_is_refused():
    with pytest.raises(InvalidRequest, match="max_new_tokens is 0"):
        Plan(max_new_tokens=0)
