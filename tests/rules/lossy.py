"""What the tests of lossy rules share: one decision with its ledger, and decoding with tiny models.

Axes: V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch

from paceline import engine
from paceline.draft import Draft, Siblings
from paceline.drafters.draft_model import DraftModelDrafter
from paceline.rules.memory import Memory, pack
from paceline.rules.walk import Rule, Verdict
from paceline.sampling import Random, SamplingParams, TargetProbs
from paceline.tree import Tree

from .. import tiny
from ..matrix import PROMPTS, request

PROMPT = (7, 8, 9, 5)
GREEDY, SAMPLED = SamplingParams(), SamplingParams(temperature=1.0)


def everything(vocab: int, times: int = 100) -> Memory:
    """A memory that knows all pairs."""
    return Memory.calibration({pack(x, t): times for x in range(vocab) for t in range(vocab) if x != t})


def context(tokens: Sequence[int] = PROMPT, params: SamplingParams = GREEDY, prompt_length: int = 2) -> Any:
    """A request that has produced some tokens."""
    return SimpleNamespace(tokens=list(tokens), prompt_length=prompt_length, params=params, eos_token_ids=frozenset(), ledgers={})


def decide(
    rule: Rule, logits: Any, tree: Tree, of: Any = None, *, beliefs: Any = None, rng: Any = None, siblings: Siblings = Siblings.FIXED
) -> tuple[Verdict, Any]:
    """The verdict on a tree, `logits` (N, V) after its nodes, and the request with its ledgers."""
    of = of or context()
    rows = torch.as_tensor(logits, dtype=torch.float64)
    beliefs = None if beliefs is None else tuple(torch.as_tensor(b, dtype=torch.float64) for b in beliefs)
    draft = Draft(tree, siblings, beliefs=beliefs)
    return rule(draft, TargetProbs(rows, of, tree), rng or Random(0)), of


def decode(rule: Rule, prompts: Sequence[str] = ("short",), count: int = 40, *, noise: float = 0.1, **settings: Any) -> list[Any]:
    """Finished requests of the tiny target, drafted by a noisy copy of it in a chain or a grown tree."""
    target, seqs = tiny.target(), [request(PROMPTS[p], count, **settings) for p in prompts]
    drafter = DraftModelDrafter(tiny.draft(noise=noise), tiny.VOCAB, keeps_beliefs=rule.reads_beliefs)
    return engine.generate(target, drafter, rule, seqs)


@torch.no_grad()
def margins(seq: Any) -> list[float]:
    """By how much the target prefers its own token to each output token: recomputed by a plain forward over the whole text."""
    logits = tiny.plain("llama")(torch.tensor([seq.tokens]), use_cache=False).logits[0].double()
    start = seq.prompt_length
    return [float(logits[i - 1].max() - logits[i - 1, seq.tokens[i]]) for i in range(start, len(seq.tokens))]
