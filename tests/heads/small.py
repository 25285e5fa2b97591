"""Tiny heads for tests: one at random, and one that has learnt the tiny Llama's answers, so that its drafts are often accepted."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from paceline.heads.jetspec import JetSpecConfig, JetSpecHead
from paceline.targets.hf import HFTarget

from .. import tiny
from ..oracle import answer

SETTINGS = {"block_size": 5, "num_hidden_layers": 2, "taps": (0, 1), "markov_rank": 4, "last_feature": True, "draft_vocab_size": 48}


def kept_ids(config: JetSpecConfig) -> torch.Tensor | None:
    """A draft vocabulary: all but every fifth token, as far as it is reduced."""
    if config.draft_vocab_size is None:
        return None
    ids = torch.tensor([i for i in range(config.vocab_size) if i % 5 != 3])
    return ids[: config.draft_vocab_size]


def config(target: HFTarget, **changes: Any) -> JetSpecConfig:
    return JetSpecConfig.for_target(target, **{**SETTINGS, **changes})


def random_head(target: HFTarget | None = None, seed: int = 0, **changes: Any) -> JetSpecHead:
    """A head in float32 with every parameter drawn, so that nothing cancels out."""
    target = target or tiny.target()
    made = config(target, **changes)
    torch.manual_seed(seed)
    head = JetSpecHead.for_target(target, made, kept_ids(made)).eval()
    with torch.no_grad():
        for name, parameter in head.named_parameters():
            parameter.copy_(1 + 0.3 * torch.randn_like(parameter) if "norm" in name else 0.3 * torch.randn_like(parameter))
    return head.requires_grad_(False)


def features(target: HFTarget, tokens: list[int], layer_ids: tuple[int, ...]) -> torch.Tensor:
    """(T, F) of these tokens."""
    slot = target.cache.open()
    (rows,) = target.prefill([slot], [tokens], layer_ids)
    target.cache.free(slot)
    return rows.clone()


@cache
def taught_head(steps: int = 20) -> JetSpecHead:
    """Taught for a moment what follows the matrix's prompts, so that its drafts of the whole vocabulary are right for a while."""
    from ..matrix import PROMPTS

    target = tiny.target()
    head = random_head(target, draft_vocab_size=None).requires_grad_(True)
    texts = [[*p, *answer("llama", p, 44)] for p in PROMPTS.values()]
    tokens = torch.nn.utils.rnn.pad_sequence([torch.tensor(t) for t in texts], batch_first=True)
    rows = [features(target, text, head.config.target_layer_ids) for text in texts]
    padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    places = torch.arange(40) + torch.tensor([[len(text) - 45] for text in texts])
    optimizer = torch.optim.AdamW(head.parameters(), 1e-2)
    for _ in range(steps):
        loss = _loss(head, tokens, padded, places)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return head.eval().requires_grad_(False)


def _loss(head: JetSpecHead, tokens: torch.Tensor, rows: torch.Tensor, anchors: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of the blocks at these anchors (B, A), with the Markov term given the right token before."""
    hidden = head(head.fuse(rows), tokens.gather(1, anchors), anchors)  # (B, A, depth, H)
    before = (anchors[..., None] + torch.arange(head.config.depth)).flatten(1)
    logits = head.logits(hidden).flatten(1, 2) + head.markov(tokens.gather(1, before))
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.gather(1, before + 1).flatten())
