"""Composed prompts, training sequences, draft vocabularies, anchors and the order of batches."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from paceline.errors import InvalidRequest
from paceline.train import examples
from paceline.train.anchors import draw
from paceline.train.answers import Answer
from paceline.train.batches import Plan, make_batch
from paceline.train.compose import compose, save, translate_back
from paceline.train.examples import Example
from paceline.train.prompts import Row, read
from paceline.train.recipe import Compose

from .conftest import sequences

TEXT = "The quick brown fox jumps over the lazy dog near the river. A second sentence follows here and says a little more about it. "


def answer(name, text=TEXT * 3, task="t", reason="stop"):
    return Answer(name, 0, task, [1, 2], [3, 4], text, reason, 0.0, 1.0, "s")


ROWS = [Row(f"r{i}", "t", (f"What is number {i}?",)) for i in range(12)]
ANSWERS = [answer(f"r{i}", TEXT * (1 + i % 4)) for i in range(12)]
KINDS = Compose(translate=6, summarize=3, answer_from=3, translate_back=4)


def test_composed_prompts_are_made_of_what_the_target_said_and_name_it():
    made = compose(KINDS, ROWS, ANSWERS, seed=1)
    assert Counter(r.task for r in made) == {"composed/translate": 6, "composed/summarize": 3, "composed/answer_from": 3}
    for row in made:
        texts = [a.text for a in ANSWERS if a.id in row.reference["sources"]]
        assert texts, row.id
        assert any(part.strip(" .") in row.turns[0] for text in texts for part in text.split(". ")[:2]), row.turns[0]


def test_long_prompts_are_long_and_a_question_stands_with_the_passages_that_answer_it():
    made = {r.task: r for r in compose(KINDS, ROWS, ANSWERS, seed=1)}
    assert len(made["composed/summarize"].turns[0]) > 450
    asked = made["composed/answer_from"]
    questions = [r.turns[0] for r in ROWS if r.id in asked.reference["sources"]]
    assert any(asked.turns[0].endswith(q) for q in questions), asked.turns[0][-60:]


def test_the_same_ingredients_make_the_same_prompts_in_any_order():
    assert compose(KINDS, ROWS, ANSWERS, seed=1) == compose(KINDS, ROWS[::-1], ANSWERS[::-1], seed=1)
    assert compose(KINDS, ROWS, ANSWERS, seed=1) != compose(KINDS, ROWS, ANSWERS, seed=2)


@pytest.mark.parametrize(
    "useless", [answer("r1", "x = 1; y = {2: 3}; z[4] = 5 == 6 " * 9), answer("r1", reason="length"), answer("r1", "```\n" + TEXT)]
)
def test_code_and_answers_that_were_cut_are_no_ingredients(useless):
    assert compose(KINDS, ROWS, [useless], seed=1) == []


def test_a_translation_is_asked_back_in_its_own_language():
    told = [answer("composed-translate-German-00003", "Der Fuchs springt über den Hund.", "composed/translate"), *ANSWERS]
    (row,) = translate_back(KINDS, told, seed=1)
    assert "German" in row.turns[0]
    assert "English" in row.turns[0]
    assert "Der Fuchs springt über den Hund." in row.turns[0]


def test_saved_prompts_are_read_again_as_they_were(tmp_path):
    made = compose(KINDS, ROWS, ANSWERS, seed=1)
    save(tmp_path / "p.jsonl", made)
    assert read([tmp_path / "p.jsonl"], on_bad_line="stop", say=print) == made


# --- sequences


def test_an_answer_is_supervised_and_its_prompt_is_not(teacher_target):
    (example,) = examples.from_answers([answer("a")], 100)
    assert (example.tokens, example.prompt_length, example.trainable) == ((1, 2, 3, 4), 2, True)


def test_corpus_text_stands_in_the_template_and_ends_like_an_answer(teacher_target):
    rows = [Row("a", "t", ("the rain",), {"solution": "the lake"}), Row("b", "t", ("no reference",))]
    (example,) = examples.from_corpus(teacher_target, rows, 100)
    text = teacher_target.tokenizer.decode(list(example.tokens))
    assert text == "<|user|>the rain<|end|><|assistant|>the lake<|end|>", text
    assert teacher_target.tokenizer.decode(list(example.tokens[example.prompt_length :])) == "the lake<|end|>"


def test_if_nothing_is_supervised_the_rendered_text_is_shown(teacher_target):
    prompt = teacher_target.tokenizer("<|user|>the rain<|end|><|assistant|>")["input_ids"]
    empty = Example("a", "t", (*prompt, 5), len(prompt))
    with pytest.raises(InvalidRequest) as caught:
        examples.trainable([empty, empty], teacher_target)
    message = str(caught.value)
    assert "none of 2 training sequences" in message, message
    assert "<|user|>the rain<|end|><|assistant|>" in message, message
    assert f"begins at {len(prompt)}" in message, message


def test_the_draft_vocabulary_are_the_most_frequent_answer_tokens_and_the_end(teacher_target):
    told = [Example("a", "t", (9, 9, 9, 50, 50, 60, 70, 70, 70), 3)]
    (end,) = teacher_target.eos_token_ids
    ids = examples.draft_vocabulary(told, 3, teacher_target)
    assert ids.tolist() == sorted([end, 50, 70]), "60 is rarer, 9 stands in the prompt"
    assert examples.coverage(told, ids) == pytest.approx(5 / 6)
    assert examples.draft_vocabulary(told, 5, teacher_target).tolist() == sorted([end, 50, 70, 60, 9]), "then what prompts say"
    assert examples.draft_vocabulary(told, teacher_target.vocab_size, teacher_target) is None


# --- anchors and batches


def test_anchors_have_a_supervised_token_behind_them_and_are_ascending_and_different():
    example = Example("a", "t", tuple(range(40)), 10)
    drawn = draw(example, 12, seed=0, epoch=0).tolist()
    assert drawn == sorted(set(drawn))
    assert len(drawn) == 12
    assert min(drawn) >= 10
    assert max(drawn) <= 38
    assert draw(example, 100, seed=0, epoch=0).tolist() == list(range(10, 39))


def test_anchors_are_drawn_anew_in_every_epoch_and_are_the_same_when_an_epoch_is_repeated():
    example = Example("a", "t", tuple(range(40)), 10)
    drawn = [draw(example, 12, seed=0, epoch=epoch).tolist() for epoch in (0, 1, 0)]
    assert drawn[0] == drawn[2] != drawn[1]


def test_a_batch_holds_no_feature_behind_its_last_anchor_and_the_states_before_each_token(teacher_target, taps):
    (example,) = sequences(teacher_target, 1)
    (tapped,) = taps.read([example.tokens])
    anchors = torch.tensor([4, 7, 12])
    batch = make_batch([example], [tapped], [anchors], depth=3)
    assert batch.features.shape[1] == 12
    assert torch.equal(batch.hidden[0, 1], tapped.hidden[7:10])
    assert batch.blocks[0, 1].tolist() == list(example.tokens[7:11])
    assert batch.supervised[0].tolist() == [[True] * 3, [True] * 3, [True, False, False]], "14 tokens: 13 is the last"


def test_an_epoch_has_every_example_once_and_the_next_another_order(teacher_target, taps):
    plan = Plan(sequences(teacher_target, 6), lambda found: [], depth=3, batch_size=2, micro_batch=1, anchors=4, seed=0)
    epochs = [[e.key for step in range(3) for e in plan.members(3 * epoch + step)[1]] for epoch in (0, 1)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == [f"e{i}" for i in range(6)]
    assert epochs[0] != epochs[1]


def test_processes_share_a_step_without_overlap(teacher_target, taps):
    examples_ = sequences(teacher_target, 6)
    plan = Plan(examples_, lambda found: taps.read([e.tokens for e in found]), depth=3, batch_size=4, micro_batch=2, anchors=4, seed=0)
    shares = [[row for batch in plan.step(1, rank, 2) for row in batch.tokens.tolist()] for rank in (0, 1)]
    got = sorted(tuple(t for t in row if t)[:9] for share in shares for row in share)
    assert got == sorted(tuple(t for t in e.tokens if t)[:9] for e in plan.members(1)[1])
