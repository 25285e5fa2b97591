"""Sampling settings against Transformers' own processors, at every node of a tree and through the loop with drafts of all lengths."""

from __future__ import annotations

import math
from collections import Counter

import hypothesis
import pytest
import torch
from hypothesis import strategies as st
from transformers.generation import logits_process as hf

from paceline import engine
from paceline.errors import InvalidRequest, NumericalError
from paceline.rules.match import match
from paceline.sampling import Random, SamplingParams, TargetProbs
from paceline.sequence import Sequence
from paceline.tree import Tree

from . import matrix, tiny
from .drafts import Planted, varied
from .oracle import oracle

PROMPT = matrix.PROMPTS["short"]
EOS = matrix.answer("llama", PROMPT, 40)[1]  # an end-of-sequence id that comes early


class Frequencies:
    """The penalties of the OpenAI interface, which Transformers lacks: they count the output only."""

    def __init__(self, frequency: float, presence: float) -> None:
        self.frequency, self.presence = frequency, presence

    def __call__(self, ids, scores):
        scores = scores.clone()
        for token, count in Counter(ids[0, len(PROMPT) :].tolist()).items():
            scores[0, token] -= self.frequency * count + self.presence
        return scores


BAD_WORDS = ((3,), (41, 6), (29, 5), (6, 59, 44))
# settings -> the same in Transformers' words, in Transformers' order
PROCESSED = {
    "repetition_penalty": ({"repetition_penalty": 1.6}, lambda: [hf.RepetitionPenaltyLogitsProcessor(1.6)]),
    "frequency_penalty": ({"frequency_penalty": 1.5}, lambda: [Frequencies(1.5, 0)]),
    "presence_penalty": ({"presence_penalty": 2.5}, lambda: [Frequencies(0, 2.5)]),
    "logit_bias": ({"logit_bias": {3: -9.0, 17: 4.0}}, lambda: [hf.SequenceBiasLogitsProcessor({(3,): -9.0, (17,): 4.0})]),
    "bad_words": ({"bad_words": BAD_WORDS}, lambda: [hf.NoBadWordsLogitsProcessor([list(w) for w in BAD_WORDS])]),
    "min_new_tokens": ({"min_new_tokens": 4}, lambda: [hf.MinNewTokensLengthLogitsProcessor(len(PROMPT), 4, EOS)]),
    "a processor": ({"processors": (hf.NoRepeatNGramLogitsProcessor(2),)}, lambda: [hf.NoRepeatNGramLogitsProcessor(2)]),
    "bias before penalties": (
        {"logit_bias": {3: 6.0, 41: -3.0}, "repetition_penalty": 2.0, "bad_words": BAD_WORDS},
        lambda: [
            hf.SequenceBiasLogitsProcessor({(3,): 6.0, (41,): -3.0}),
            hf.RepetitionPenaltyLogitsProcessor(2.0),
            hf.NoBadWordsLogitsProcessor([list(w) for w in BAD_WORDS]),
        ],
    ),
}
WARPED = {
    "temperature": ({"temperature": 0.7}, lambda: [hf.TemperatureLogitsWarper(0.7)]),
    "top_k": ({"temperature": 1.0, "top_k": 5}, lambda: [hf.TopKLogitsWarper(5)]),
    "top_p": ({"temperature": 1.0, "top_p": 0.6}, lambda: [hf.TopPLogitsWarper(0.6)]),
    "min_p": ({"temperature": 1.0, "min_p": 0.2}, lambda: [hf.MinPLogitsWarper(0.2)]),
    "all of them": (
        {"temperature": 1.4, "top_k": 20, "top_p": 0.9, "min_p": 0.02},
        lambda: [hf.TemperatureLogitsWarper(1.4), hf.TopKLogitsWarper(20), hf.TopPLogitsWarper(0.9), hf.MinPLogitsWarper(0.02)],
    ),
}
# Equal tokens on different paths, a bad word along one path and its parts on others, an early and a late repetition.
TREE = Tree((10, 41, 29, 6, 5, 6, 59, 44, 10, 3, 41), (-1, 0, 0, 1, 2, 0, 5, 6, 3, 8, 9))


def reference(ids: list[int], row: torch.Tensor, processors) -> torch.Tensor:
    """(V,) logits after Transformers' processors."""
    scores = row[None]
    for processor in processors:
        scores = processor(torch.tensor([ids]), scores)
    return scores[0]


def laws(settings, logits: torch.Tensor) -> TargetProbs:
    seq = Sequence(PROMPT, SamplingParams(**settings), eos_token_ids=frozenset([EOS]))
    return TargetProbs(logits, seq, TREE)


@pytest.mark.parametrize("name", [*PROCESSED, *WARPED])
def test_every_node_has_the_law_that_transformers_makes_of_its_own_path(name):
    settings, processors = (PROCESSED | WARPED)[name]
    torch.manual_seed(4)
    logits = (3 * torch.randn(tiny.VOCAB)).expand(len(TREE), -1)  # the same at all nodes: only the path tells them apart
    made = laws({"temperature": 1.0, **settings}, logits)
    for node in range(len(TREE)):
        ids = [*PROMPT, *(TREE.tokens[n] for n in TREE.path(node)[1:])]
        want = torch.softmax(reference(ids, logits[node], processors()), -1)
        worst = float((made.row(node) - want).abs().max())
        assert worst < 1e-6, f"{name}: the law after node {node}, path {ids[len(PROMPT) :]}, is off by {worst:.2e}"


@pytest.mark.parametrize("name", PROCESSED)
def test_the_tree_above_has_nodes_that_a_setting_treats_differently(name):
    settings, _ = PROCESSED[name]
    made = laws({"temperature": 1.0, **settings}, torch.ones(len(TREE), tiny.VOCAB))
    different = {tuple(made.row(node).tolist()) for node in range(len(TREE))}
    assert len(different) > 1 or name == "logit_bias", f"{name}: one law for all nodes tests nothing"


@hypothesis.given(
    st.lists(st.integers(-40, 40), min_size=2, max_size=40, unique=True),  # of two equally likely tokens either may be kept
    st.floats(0.2, 3),
    st.integers(0, 40),
    st.floats(0.05, 0.99) | st.just(1.0),
    st.floats(0, 1),
)
def test_truncation_keeps_what_transformers_keeps(row, temperature, top_k, top_p, min_p):
    logits = torch.tensor(row) / 7
    warpers = [hf.TemperatureLogitsWarper(temperature)]
    warpers += [hf.TopKLogitsWarper(top_k)] if top_k else []
    warpers += [hf.TopPLogitsWarper(top_p)] if top_p < 1 else []
    warpers += [hf.MinPLogitsWarper(min_p)] if min_p else []
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    made = TargetProbs(logits[None], Sequence([0], params), Tree.chain([0])).row(0)
    want = torch.softmax(reference([0], logits, warpers), -1)
    assert torch.allclose(made, want, atol=1e-5), f"{made.tolist()}\n{want.tolist()}"


def test_a_large_vocabulary_is_cut_as_a_small_one():
    torch.manual_seed(0)
    flat = torch.randn(5000) * 0.1  # top-p 0.9 keeps more than a partial sort looks at first
    made = TargetProbs(flat[None], Sequence([0], SamplingParams(temperature=1.0, top_p=0.9)), Tree.chain([0])).row(0)
    want = torch.softmax(hf.TopPLogitsWarper(0.9)(None, flat[None])[0], -1)
    counts = int((made > 0).sum()), int((want > 0).sum())
    assert abs(counts[0] - counts[1]) <= 1, f"{counts[0]} tokens are kept, Transformers keeps {counts[1]}"


def end(name: str) -> int | None:
    """The end-of-sequence id, for the setting that cares."""
    return EOS if name == "min_new_tokens" else None


def text(name: str) -> list[int]:
    """The oracle's text under this setting."""
    return oracle(tiny.plain("llama"), PROMPT, 30, PROCESSED[name][1](), lambda tokens: tokens[-1] == end(name))


KEEPS = {"none": lambda seq: 0, "one": lambda seq: 1, "two": lambda seq: 2, "three": lambda seq: 3, "five": lambda seq: 5, "varied": varied}


@pytest.mark.parametrize("keep", KEEPS.values(), ids=KEEPS)
@pytest.mark.parametrize("name", PROCESSED)
def test_greedy_text_with_a_setting_is_the_oracles_whatever_is_accepted(name, keep):
    settings, want = PROCESSED[name][0], text(name)
    target = tiny.target()
    seq = matrix.request(PROMPT, 30, eos=end(name), **settings)
    engine.generate(target, Planted(lambda prompt: want[len(PROMPT) :], keep), match, [seq])
    matrix.expect(seq.tokens, want, name)


@pytest.mark.parametrize("row", [r for r in matrix.ROWS if r != "planted"])
@pytest.mark.parametrize("name", PROCESSED)
def test_greedy_text_with_a_setting_is_the_oracles_with_every_method(name, row):
    settings, want = PROCESSED[name][0], text(name)
    target = tiny.target()
    (seq,) = engine.generate(target, *matrix.method(row, target), [matrix.request(PROMPT, 30, eos=end(name), **settings)])
    matrix.expect(seq.tokens, want, f"{name}, {row}")


@pytest.mark.parametrize("name", PROCESSED)
def test_a_setting_changes_the_text(name):
    plain = oracle(tiny.plain("llama"), PROMPT, 30, ended=lambda tokens: tokens[-1] == end(name))
    assert text(name) != plain, f"{name} makes no difference to {plain}"


class Watching:
    """A processor that remembers what it was shown."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []

    def __call__(self, ids, scores):
        self.seen.append(ids[0].tolist())
        return scores


@pytest.mark.parametrize("temperature", [0.0, 1.2])
@pytest.mark.parametrize("row", matrix.ROWS)
def test_a_processor_sees_each_kept_token_once_and_in_order_and_no_other(row, temperature):
    target, watching = tiny.target(), Watching()
    seq = matrix.request(matrix.PROMPTS["short"], 30, processors=(watching,), temperature=temperature, seed=5)
    engine.generate(target, *matrix.method(row, target), [seq])
    want = [seq.tokens[:n] for n in range(6, 36)]
    assert watching.seen == want, f"{row}: it saw prefixes of length {[len(ids) for ids in watching.seen]}"


def test_beyond_a_stop_a_processor_is_shown_the_accepted_path_only():
    target, watching = tiny.target(), Watching()
    seq = matrix.request(PROMPT, 30, processors=(watching,), eos=EOS)
    engine.generate(target, Planted(keep=lambda seq: 7), match, [seq])
    kept = [seq.tokens[:n] for n in range(6, 8)]
    beyond = [[*PROMPT, *matrix.answer("llama", PROMPT, 40)[:n]] for n in range(2, 8)]
    assert watching.seen == kept + beyond, f"it saw {watching.seen}"


def test_a_processor_of_one_request_does_not_see_another():
    target, watching = tiny.target(), Watching()
    seqs = [matrix.request(matrix.PROMPTS["short"], 9, processors=(watching,)), matrix.request(matrix.PROMPTS["long"], 9)]
    engine.generate(target, Planted(), match, seqs)
    assert {tuple(ids[:6]) for ids in watching.seen} == {matrix.PROMPTS["short"]}


INVALID = [
    ("max_new_tokens", 0),
    ("max_new_tokens", -3),
    ("min_new_tokens", -1),
    ("min_new_tokens", 999),
    ("temperature", -0.5),
    ("temperature", math.nan),
    ("temperature", math.inf),
    ("top_k", -1),
    ("top_p", 0.0),
    ("top_p", 1.5),
    ("top_p", math.nan),
    ("min_p", -0.1),
    ("min_p", 1.1),
    ("repetition_penalty", 0.0),
    ("repetition_penalty", math.inf),
    ("frequency_penalty", math.nan),
    ("presence_penalty", math.inf),
    ("bad_words", ((1,), ())),
    ("stop", "a string"),
    ("stop", ("",)),
    ("logprobs", -1),
]


@pytest.mark.parametrize(("field", "value"), INVALID)
def test_an_impossible_setting_is_refused_by_name_and_value(field, value):
    with pytest.raises(InvalidRequest) as error:
        SamplingParams(**{field: value})
    assert str(error.value).startswith(f"{field} is {value!r}; it must be "), error.value


@pytest.mark.parametrize(
    ("settings", "named"),
    [({"logit_bias": {tiny.VOCAB: 1.0}}, "logit_bias names token 61"), ({"bad_words": ((tiny.VOCAB,),)}, "bad_words names token 61")],
)
def test_a_token_outside_the_vocabulary_is_refused_before_the_first_token(settings, named):
    target, seq = tiny.target(), matrix.request(PROMPT, **settings)
    with pytest.raises(InvalidRequest, match=f"{named}; the vocabulary has 61 tokens"):
        engine.generate(target, *matrix.method("none", target), [seq])
    assert seq.output == []


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("row", ["none", "planted", "draft_model"])
def test_logits_that_are_no_numbers_are_an_error(monkeypatch, row, temperature):
    target = tiny.target()
    drafter, rule = matrix.method(row, target)
    full = target.full
    monkeypatch.setattr(target, "full", lambda **arguments: [full(**arguments)[0] * math.nan])
    with pytest.raises(NumericalError, match="not numbers"):
        engine.generate(target, drafter, rule, [matrix.request(PROMPT, temperature=temperature)])


def test_banning_every_token_is_an_error():
    target = tiny.target()
    seq = matrix.request(PROMPT, bad_words=tuple((i,) for i in range(tiny.VOCAB)))
    with pytest.raises(NumericalError, match="every token is banned"):
        engine.generate(target, *matrix.method("none", target), [seq])


def test_a_coin_of_certain_outcome_never_fails():
    rng = Random(0)
    assert {rng.coin(1.0) for _ in range(1000)} == {True}
    assert {rng.coin(0.0) for _ in range(1000)} == {False}


def test_a_token_of_probability_zero_is_never_picked():
    rng, probs = Random(0), torch.tensor([0.0, 0.5, 0.0, 0.5, 0.0])
    assert {rng.pick(probs) for _ in range(1000)} == {1, 3}
