"""Replaying a text asks a drafter where decoding would, and gets the same rounds."""

from __future__ import annotations

import pytest

from paceline import engine, methods
from paceline.replay import Text, replay
from paceline.rules.match import match
from paceline.sampling import SamplingParams

from . import matrix
from .heads.small import features, taught_head

PROMPTS = list(matrix.PROMPTS.values())


def decoded(target, head, params):
    drafter, _ = methods.build("jetspec", target, methods.Options(budget=10, head=head))
    found = {}
    seqs = [matrix.request(p, 20) for p in PROMPTS]
    for i, seq in enumerate(seqs):
        seq.restart(seq.tokens, params)
        found[str(i)] = []
    for round_ in engine.stream(target, drafter, match, seqs):
        number = next(i for i, s in enumerate(seqs) if s is round_.sequence)
        found[str(number)].append((round_.tokens, round_.draft.tree, round_.path))
    return seqs, found


@pytest.mark.parametrize(
    "params", [SamplingParams(max_new_tokens=20), SamplingParams(max_new_tokens=20, temperature=1.0, seed=4)], ids=["greedy", "sampled"]
)
def test_replay_finds_the_rounds_of_decoding(target, params):
    head = taught_head()
    seqs, want = decoded(target, head, params)
    texts = [
        Text(str(i), "d", tuple(s.tokens), s.prompt_length, features(target, s.tokens[:-1], head.config.target_layer_ids))
        for i, s in enumerate(seqs)
    ]
    drafter, _ = methods.build("jetspec", target, methods.Options(budget=10, head=head))
    got = {t.key: [] for t in texts}
    for text, round_ in replay(drafter, texts, batch_size=2):
        got[text.key].append((round_.tokens, round_.draft.tree, round_.path))
    assert any(len(path) > 1 for rounds in want.values() for _, _, path in rounds), "nothing was accepted, which proves little"
    for key in want:
        assert [r[0] for r in got[key]] == [r[0] for r in want[key]], f"text {key}: other tokens per round"
        assert got[key][:-1] == want[key][:-1], f"text {key}: other drafts or paths"
