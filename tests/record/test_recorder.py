"""Recording real rounds: what is kept, in how much room, over several runs, and whose records are refused."""

from __future__ import annotations

import dataclasses
import json

import pytest

from paceline import engine
from paceline.drafters.draft_model import DraftModelDrafter
from paceline.drafters.none import NoDrafter
from paceline.errors import CheckpointMismatch, IncompatibleRule, InvalidRequest
from paceline.record.origin import head_hash, origin
from paceline.record.pairs import check_pairs, pairs
from paceline.record.recorder import Recorder, read_records, shards
from paceline.rules.match import match
from paceline.sampling import SamplingParams
from paceline.targets.hf import HFTarget

from .. import matrix, tiny
from ..drafts import Planted
from ..heads.small import random_head

PROMPTS = list(matrix.PROMPTS.values())


@pytest.fixture
def whose(target):
    return origin(target, "")


def decoded(target, drafter, recorder, prompts=PROMPTS, count=16, **params):
    """Decode prompts and record all rounds; returns the sequences."""
    seqs = [matrix.request(p, count) for p in prompts]
    for seq in seqs:
        seq.params = dataclasses.replace(seq.params, **params)
    for round_ in engine.stream(target, drafter, match, seqs):
        recorder.add(round_, "poems")
    return seqs


def test_each_finished_text_is_kept_with_its_rounds(target, whose, tmp_path):
    seqs = decoded(target, Planted(), Recorder(tmp_path / "r", whose, match))
    texts = read_records(tmp_path / "r", whose)
    assert sorted(t.tokens for t in texts) == sorted(tuple(s.tokens) for s in seqs)
    for text in texts:
        places = [text.prompt_length - 1]
        for round_ in text.rounds:
            assert round_.at == places[-1], f"round at {round_.at}, want {places[-1]}"
            assert round_.tokens[0] == text.tokens[round_.at], "the root is not the text's token"
            kept = [round_.tokens[n] for n in round_.path[1 : round_.accepted + 1]]
            assert kept == list(text.tokens[round_.at + 1 : round_.at + 1 + round_.accepted]), "accepted tokens are not the text's"
            places.append(round_.at + round_.taken)
        assert places[-1] == len(text.tokens) - 1, f"the rounds end at {places[-1]} of {len(text.tokens)} tokens"
    assert {t.domain for t in texts} == {"poems"}
    assert check_pairs(texts, "r") > 0


def test_every_chosen_token_is_the_targets_own_and_every_refused_one_is_not(target, whose, tmp_path):
    decoded(target, DraftModelDrafter(tiny.draft(), target.vocab_size), Recorder(tmp_path / "r", whose, match))
    texts = read_records(tmp_path / "r", whose)
    for text in texts:
        for round_ in text.rounds:
            for pair in pairs(text, round_):
                assert pair.chosen == text.tokens[round_.at + pair.depth]
                assert pair.refused != pair.chosen
                assert pair.depth <= round_.taken, f"a label at depth {pair.depth} of a round that brought {round_.taken} tokens"


def test_rows_of_the_target_are_kept_if_the_request_asks_for_them(target, whose, tmp_path):
    (seq,) = decoded(target, Planted(), Recorder(tmp_path / "r", whose, match), PROMPTS[:1], logprobs=3)
    (text,) = read_records(tmp_path / "r", whose)
    assert text.rows is not None
    assert [row[0][0] for row in text.rows] == seq.output
    assert [row[0][1] for row in text.rows] == pytest.approx([p.logprob for p in seq.logprobs], abs=1e-3)
    assert {len(row) for row in text.rows} == {4}


def test_a_text_that_was_not_finished_is_not_kept(target, whose, tmp_path):
    recorder = Recorder(tmp_path / "r", whose, match)
    seq = matrix.request(PROMPTS[0], 16)
    for round_, _ in zip(engine.rounds(target, Planted(), match, [seq]), range(2), strict=False):
        recorder.add(round_)
    engine.release(target, seq)
    assert read_records(tmp_path / "r", whose) == []


def test_a_second_run_adds_to_the_first_and_a_line_that_was_cut_short_is_dropped(target, whose, tmp_path):
    decoded(target, Planted(), Recorder(tmp_path / "r", whose, match), PROMPTS[:1])
    (shard,) = shards(tmp_path / "r")
    with shard.open("a") as out:
        out.write('{"key": "half')
    decoded(target, Planted(), Recorder(tmp_path / "r", whose, match), PROMPTS[1:2])
    assert len(read_records(tmp_path / "r", whose)) == 2


def test_room_is_bounded_and_the_oldest_shards_go_first(target, whose, tmp_path):
    recorder = Recorder(tmp_path / "r", whose, match, limit_mb=0.02, shard_mb=0.004)
    for count in range(4, 16):
        decoded(target, Planted(), recorder, PROMPTS, count)
    size = sum(f.stat().st_size for f in shards(tmp_path / "r"))
    assert size <= 0.02 * 2**20, f"{size} bytes"
    assert shards(tmp_path / "r")[0].name != "000000.jsonl", "the oldest shard is still there"
    newest = max(len(t.tokens) - t.prompt_length for t in read_records(tmp_path / "r", whose))
    assert newest == 15, f"the longest answer is of {newest} tokens: the newest text is gone"


# --- whose records


def test_records_of_another_target_are_refused(target, whose, tmp_path):
    Recorder(tmp_path / "r", whose, match)
    other = origin(HFTarget(tiny.noisy("llama", 0.2)), "")
    with pytest.raises(CheckpointMismatch, match=r"fingerprint is off by .*; use the one"):
        Recorder(tmp_path / "r", other, match)


def test_records_of_another_tokenizer_are_refused(whose, tmp_path):
    Recorder(tmp_path / "r", whose, match)
    with pytest.raises(CheckpointMismatch, match=r"were made with tokenizer .* and this target has abc"):
        read_records(tmp_path / "r", dataclasses.replace(whose, tokenizer="abc"))


def test_records_of_another_head_are_refused(target, tmp_path):
    Recorder(tmp_path / "r", origin(target, head_hash(random_head(target))), match)
    with pytest.raises(CheckpointMismatch, match=r"were made with drafter .* and this one is"):
        read_records(tmp_path / "r", origin(target, head_hash(random_head(target, seed=1))))


def test_a_head_has_one_hash_in_any_precision(target):
    import torch

    head = random_head(target)
    want = head_hash(head)
    assert head_hash(head.to(torch.bfloat16)) == want
    assert head_hash(random_head(target, seed=1)) != want


def test_a_lossy_rules_text_is_no_label(whose, tmp_path):
    with pytest.raises(IncompatibleRule, match="lossy"):
        Recorder(tmp_path / "r", whose, dataclasses.replace(match, lossless=False))


def test_a_folder_that_holds_something_else_is_left_alone(whose, tmp_path):
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "letter.txt").write_text("dear")
    with pytest.raises(InvalidRequest, match="is not empty and holds no records"):
        Recorder(tmp_path / "r", whose, match)
    with pytest.raises(InvalidRequest, match="holds no records"):
        read_records(tmp_path / "r", whose)


def test_a_line_that_is_no_record_is_named(target, whose, tmp_path):
    decoded(target, NoDrafter(), Recorder(tmp_path / "r", whose, match), PROMPTS[:1])
    (shard,) = shards(tmp_path / "r")
    shard.write_text(shard.read_text() + json.dumps({"key": 1}) + "\n")
    with pytest.raises(InvalidRequest, match=r"000000\.jsonl, line 2: no record of ours"):
        read_records(tmp_path / "r", whose)


def test_sampled_texts_carry_their_temperature(target, whose, tmp_path):
    recorder = Recorder(tmp_path / "r", whose, match)
    seq = matrix.request(PROMPTS[0], 8)
    seq.params = SamplingParams(max_new_tokens=8, temperature=0.7, seed=3)
    for round_ in engine.stream(target, Planted(), match, [seq]):
        recorder.add(round_)
    assert [t.temperature for t in read_records(tmp_path / "r", whose)] == [0.7]
