"""Shared by the tests of the draft model: one draft for a new sequence, the draft model's own logits, and a drafter that is watched."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from functools import cache

import torch

from paceline.draft import Siblings
from paceline.drafters.draft_model import DraftModelDrafter
from paceline.targets.hf import HFTarget

from .. import matrix, tiny

NOISE = 0.005  # little enough for drafts to be accepted to their end, and enough for others to be rejected at once
SHORT, LONG = matrix.PROMPTS["short"], matrix.PROMPTS["long"]
DEEP = {"stop_below": 0.0}  # never stops early


def small() -> HFTarget:
    """The draft model with an empty cache."""
    return tiny.draft("llama", NOISE)


@dataclass
class Watched:
    """Checks after every draft that the cache holds the sequence's own tokens, and that a new drafter would propose the same."""

    inner: DraftModelDrafter
    siblings: Siblings = Siblings.FIXED
    target_layer_ids: tuple[int, ...] = ()
    drafts: list = field(default_factory=list)

    def propose(self, seqs):
        drafts = self.inner.propose(seqs)
        for seq, draft in zip(seqs, drafts, strict=True):
            self.check_cache(seq)
            self.check_draft(seq, draft)
        self.drafts += drafts
        return drafts

    def check_cache(self, seq) -> None:
        state = self.inner._states[seq.slot]
        own = seq.tokens[state.start :][: len(state.tokens)]
        assert state.tokens == own, f"after {len(seq.output)} tokens the draft cache holds {state.tokens}, the sequence {own}"
        length = self.inner.model.cache.length(state.slot)
        assert length == len(state.tokens), f"{length} cached rows for {len(state.tokens)} tokens"

    def check_draft(self, seq, draft) -> None:
        if self.inner._states[seq.slot].start == 0:
            inner = self.inner
            settings = {"width": inner.width, "stop_below": inner.stop_below}
            fresh = DraftModelDrafter(small(), inner.vocab_size, inner.depth, inner.budget, **settings)
            (want,) = fresh.propose([seq])
            assert draft.tree == want.tree, f"after {len(seq.output)} tokens: {draft.tree}, a new drafter proposes {want.tree}"


@cache
def plain():
    """The draft model with its own attention."""
    model = copy.deepcopy(tiny.noisy("llama", NOISE))
    model.set_attn_implementation("eager")
    return model.requires_grad_(False)


def logits(tokens) -> torch.Tensor:
    """(V,) the draft model's logits after these tokens."""
    return plain()(torch.tensor([list(tokens)])).logits[0, -1]


def draft(prompt, count: int = 40, model=None, vocab_size: int = tiny.VOCAB, **settings):
    """One draft for a new sequence; `settings` are the drafter's, `params` the request's."""
    params = settings.pop("params", {})
    seq = matrix.request(prompt, count, **params)
    seq.slot = 0
    (made,) = DraftModelDrafter(model or small(), vocab_size, **settings).propose([seq])
    return seq, made


def drafter(**settings) -> DraftModelDrafter:
    return DraftModelDrafter(small(), tiny.VOCAB, **settings)


def changed(rows=lambda weight: weight, **settings) -> HFTarget:
    """The draft model with other rows in embedding and output layer, and other settings."""
    model = copy.deepcopy(tiny.noisy("llama", NOISE))
    for layer in (model.model.embed_tokens, model.lm_head):
        layer.weight = torch.nn.Parameter(rows(layer.weight.detach()))
    for name, value in settings.items():
        setattr(model.config, name, value)
    return HFTarget(model)
