"""Deep tiny models whose early layers are often right, scripted gates, and a count of the layers that run."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

from paceline.drafters.specbound import SpecBoundDrafter
from paceline.heads.exit import LogitLens
from paceline.heads.exit_config import ExitConfig
from paceline.heads.exit_cost import Bounds
from paceline.targets.hf import HFTarget

from .. import tiny
from ..oracle import oracle

LAYERS = 6
_LAST = ("o_proj", "down_proj", "c_proj", "dense.", "dense_4h_to_h", "post_attention_layernorm", "post_feedforward_layernorm")
ALWAYS, NEVER = 0.0, 2.0  # thresholds


@cache
def deep_model(family: str = "llama", layers: int = LAYERS, quiet: float = 0.2, **changes: Any) -> Any:
    """A model whose layers add little each, so that an early reading is often the last one."""
    own = {"layer_types": ["sliding_attention", "full_attention"] * (layers // 2)} if "layer_types" in tiny.FAMILIES[family][2] else {}
    count = {"n_layer": layers} if family == "gpt2" else {"num_hidden_layers": layers}
    model = tiny.build(tiny.config(family, **count, **own, **changes), tiny.FAMILIES[family][1])
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if any(part in name for part in _LAST):
                parameter *= quiet
    return model


@cache
def answer(count: int, prompt: tuple[int, ...], family: str = "llama") -> list[int]:
    """The oracle's prompt and continuation."""
    return oracle(deep_model(family), prompt, count)


@cache
def _ours(family: str, layers: int) -> Any:
    return copy.deepcopy(deep_model(family, layers))


def deep(family: str = "llama", layers: int = LAYERS) -> HFTarget:
    """A target with an empty cache."""
    return HFTarget(_ours(family, layers))


def drafter(
    target: HFTarget,
    layers: Sequence[int] = (2, 4),
    *,
    threshold: float = ALWAYS,
    depth: int | None = None,
    width: int = 4,
    only: Sequence[int] | None = None,
    kind: type[SpecBoundDrafter] = SpecBoundDrafter,
    **more: Any,
) -> SpecBoundDrafter:
    """One that reads by the logit lens."""
    _ = target.runner  # made now, so that its own test is not counted
    exits = LogitLens(target, ExitConfig.for_target(target, layers))
    return kind(target, exits, Bounds(threshold, depth or layers[-1], width), layers=only, **more)


class Scripted(SpecBoundDrafter):
    """Exits where `gate` (number of the token in its draft, depth) says so."""

    gate: Callable[[int, int], bool]

    def climb(self, climbs):
        self.at = [len(climb.tokens) - 1 for climb in climbs]
        self.climbing = list(range(len(climbs)))
        return super().climb(climbs)

    def _fires(self, logits, depth):
        found = [self.gate(self.at[i], depth) for i in self.climbing]
        self.climbing = [i for i, leaves in zip(self.climbing, found, strict=True) if not leaves]
        return found


class Counted:
    """The layers that a target runs, prefill left out, in order."""

    def __init__(self, target: HFTarget) -> None:
        self.calls: list[range] = []
        run = target.runner.run

        def counted(span, trees, slots, hidden=None):
            self.calls.append(span)
            return run(span, trees, slots, hidden)

        full = target.full

        def counted_full(**given):
            self.calls.append(range(target.num_layers))
            return full(**given)

        target.runner.run, target.full = counted, counted_full

    @property
    def layers(self) -> int:
        return sum(map(len, self.calls))
