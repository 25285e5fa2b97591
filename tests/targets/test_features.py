"""Features: the outputs of decoder layers, for every token that is cached, however it came to be cached."""

from __future__ import annotations

from threading import Thread

import pytest
import torch

from paceline import engine, methods
from paceline.rules.match import match
from paceline.sampling import SamplingParams

from .. import matrix, tiny
from ..drafts import Planted

PROMPT = matrix.PROMPTS["short"]


class Reading(Planted):
    """The planted drafter, which also asks for features."""

    def __init__(self, *layers: int) -> None:
        super().__init__()
        self.target_layer_ids = layers


@torch.no_grad()
def hidden(tokens, layer: int, family: str = "llama") -> torch.Tensor:
    """(T, H) entry `layer + 1` of the plain model's hidden states."""
    return tiny.plain(family)(torch.tensor([list(tokens)]), output_hidden_states=True, use_cache=False).hidden_states[layer + 1][0]


def close(got: torch.Tensor, want: torch.Tensor, what: str) -> None:
    assert got.shape == want.shape, f"{what}: shape {tuple(got.shape)}, not {tuple(want.shape)}"
    worst = float((got - want).detach().abs().max())
    assert worst < 1e-4, f"{what}: off by {worst:.2e}"


def run(target, drafter, seq, rounds: int | None = None) -> None:
    """Some rounds, or all, with the slot left open."""
    for count, _ in enumerate(engine.rounds(target, drafter, match, [seq]), 1):
        if count == rounds:
            break


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_prefill_features_are_entry_l_plus_1_of_the_hidden_states(family):
    target, tokens = tiny.target(family), list(range(3, 20))
    (features,) = target.prefill([target.cache.open()], [tokens], [0])
    close(features, hidden(tokens, 0, family), f"{family}, layer 0")


def test_the_last_layers_features_are_those_before_the_final_norm():
    target, tokens = tiny.target(), list(range(3, 20))
    (features,) = target.prefill([target.cache.open()], [tokens], [1])
    close(tiny.plain("llama").model.norm(features), hidden(tokens, 1), "normed features of layer 1")


def test_a_prompt_read_in_chunks_has_the_same_features(monkeypatch):
    monkeypatch.setattr("paceline.targets.hf.PREFILL_CHUNK", 5)
    target, rows = tiny.target(), [list(range(3, 20)), [7], list(range(30, 42))]
    features = target.prefill([target.cache.open() for _ in rows], rows, [0])
    for tokens, own in zip(rows, features, strict=True):
        close(own, hidden(tokens, 0), f"prompt of {len(tokens)} in chunks of 5")


def test_another_thread_in_the_same_model_leaves_the_features_alone():
    """A whole forward of another target on this model runs between the first and the second layer of ours."""
    ours, other = tiny.target(), tiny.target()
    tokens, started = list(range(3, 20)), []

    def intrude(*_: object) -> None:
        if not started:
            started.append(Thread(target=other.prefill, args=([other.cache.open()], [list(range(40, 45))])))
            started[0].start()
            started[0].join()

    hook = ours.decoder_layers[1].register_forward_pre_hook(intrude)
    try:
        (features,) = ours.prefill([ours.cache.open()], [tokens], [0])
    finally:
        hook.remove()
    close(features, hidden(tokens, 0), "features")


def test_committed_features_are_those_of_the_accepted_path():
    target, seq = tiny.target(), matrix.request(PROMPT)
    run(target, Reading(0), seq)
    close(seq.features, hidden(seq.tokens[:-1], 0), "after 40 tokens")


def test_features_go_on_over_a_second_turn():
    target, seq = tiny.target(), matrix.request(PROMPT, 12)
    run(target, Reading(0), seq)
    engine.next_turn(target, seq, [*seq.tokens[:-3], 1, 2, 3], SamplingParams(max_new_tokens=12))
    run(target, Reading(0), seq)
    close(seq.features, hidden(seq.tokens[:-1], 0), "after a second turn")


@pytest.mark.parametrize("other", ["none", "lookup"])
def test_a_drafter_with_features_goes_on_after_one_without(other):
    target, seq = tiny.target(), matrix.request(PROMPT)
    run(target, methods.build(other, target)[0], seq, 5)
    run(target, Reading(0), seq)
    close(seq.features, hidden(seq.tokens[:-1], 0), f"after {other}")


def test_a_drafter_without_features_goes_on_after_one_with():
    target, seq = tiny.target(), matrix.request(PROMPT)
    run(target, Reading(0), seq, 3)
    run(target, Planted(), seq)
    matrix.expect(seq.tokens, matrix.plain(PROMPT, 40), "features, then none")


def test_a_drafter_with_features_comes_back_after_one_without():
    target, seq = tiny.target(), matrix.request(PROMPT)
    run(target, Reading(0), seq, 3)
    run(target, Planted(), seq, 2)
    run(target, Reading(0), seq)
    close(seq.features, hidden(seq.tokens[:-1], 0), "features, none, features")


def test_a_drafter_that_reads_other_layers_goes_on():
    target, seq = tiny.target(), matrix.request(PROMPT)
    run(target, Reading(1), seq, 3)
    run(target, Reading(0), seq)
    close(seq.features, hidden(seq.tokens[:-1], 0), "layer 1, then layer 0")


def test_a_ragged_batch_has_each_rows_own_features():
    target, seqs = tiny.target(), [matrix.request(p, 15) for p in matrix.PROMPTS.values()]
    for _ in engine.rounds(target, Reading(0), match, seqs):
        pass
    for seq in seqs:
        close(seq.features, hidden(seq.tokens[:-1], 0), f"prompt of {seq.prompt_length} in a batch")
