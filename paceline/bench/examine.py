"""Whether a head and a target go together, and what the head is worth: the findings of `paceline doctor`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .. import api, engine
from ..errors import InvalidRequest
from ..heads.belongs import comparison
from ..heads.formats import Stored, attach
from ..methods import Options, build
from ..sampling import SamplingParams
from ..stats import Stats
from ..targets.hf import HFTarget
from .suites import Prompt

FAR_LESS = 0.6  # of the drafted tokens that the card promises: prompts differ, but not as much as that
_BATCH, _BUDGET = 8, 24


@dataclass(frozen=True)
class Finding:
    """One line. `ok` is None where nothing can be said."""

    check: str
    found: str
    ok: bool | None


def findings(stored: Stored, target: HFTarget, prompts: Sequence[Prompt], max_new_tokens: int) -> Iterator[Finding]:
    """Everything that can be checked, the plainest first. Acceptance is measured only where the head belongs to the target."""
    config = stored.config
    sees = "causal inside the block" if config.causal else "sees both ways inside the block (DFlash)"
    yield Finding("layout", f"{stored.layout}, {sees}, block of {config.block_size}", True)
    yield Finding(
        "tensors",
        f"{len(stored.tensors)}, {sum(t.numel() for t in stored.tensors.values()) / 1e6:.1f}M numbers, all as config.json says",
        True,
    )
    ids = ", ".join(map(str, config.target_layer_ids))
    entries = ", ".join(str(i + 1) for i in config.target_layer_ids)
    yield Finding("layer ids", f"outputs of decoder layers {ids}, counted from 0 (entries {entries} of Transformers' hidden states)", True)
    fits = True
    for what, ours, theirs, same in comparison(config, target):
        fits &= same is not False
        yield Finding(what, f"{ours}" if same else f"head {ours}, target {theirs}", same)
    if fits:
        short = [p for p in prompts if _fits(target, p, max_new_tokens)]
        if not short:
            raise InvalidRequest(f"no prompt leaves room for {max_new_tokens} tokens in the context of {target.max_length}; give others")
        yield from _acceptance(stored, target, short, max_new_tokens)


def _fits(target: HFTarget, prompt: Prompt, max_new_tokens: int) -> bool:
    return target.max_length is None or len(api.encode(target, prompt.turns[0])) + max_new_tokens <= target.max_length


def _acceptance(stored: Stored, target: HFTarget, prompts: Sequence[Prompt], max_new_tokens: int) -> Iterator[Finding]:
    """Mean acceptance length against the card's; if that is bad or unknown, against what other layer ids would give."""
    card = (stored.card.get("evaluation") or {}).get("decoding") or {}
    budget, promised = int(card.get("budget") or _BUDGET), card.get("mean_acceptance_length")
    found = acceptance(stored, target, prompts, max_new_tokens=max_new_tokens, budget=budget)
    measured = f"{found:.2f} = 1 + accepted / rounds, at {budget} nodes, on {len(prompts)} prompts"
    if promised is None:
        yield Finding("mean acceptance length", f"{measured}; there is no card to compare with", None)
    else:
        enough = found - 1 >= FAR_LESS * (float(promised) - 1)
        yield Finding("mean acceptance length", f"{measured}; the card says {float(promised):.2f} on its own prompts", enough)
        if enough:
            return
    for shift in (-1, 1):
        shifted = [i + shift for i in stored.config.target_layer_ids]
        if shifted[0] < 0 or shifted[-1] >= stored.config.num_target_layers:
            continue
        other = replace(stored, config=replace(stored.config, target_layer_ids=tuple(shifted)))
        length = acceptance(other, target, prompts, max_new_tokens=max_new_tokens, budget=budget)
        yield Finding(f"with layer ids {shift:+d}", f"mean acceptance length {length:.2f}", length - 1 <= 1.1 * (found - 1) + 0.02)


def acceptance(stored: Stored, target: HFTarget, prompts: Sequence[Prompt], *, max_new_tokens: int, budget: int) -> float:
    """Mean acceptance length of the head over the first turns, greedy."""
    head: Any = attach(stored, target)
    drafter, rule = build("jetspec", target, Options(head=head, budget=budget))
    params, stats = SamplingParams(max_new_tokens=max_new_tokens), Stats()
    seqs = [api.request(target, p.turns[0], params) for p in prompts]
    for round_ in engine.stream(target, drafter, rule, seqs, _BATCH):
        stats.add(round_)
    return stats.mean_acceptance_length
