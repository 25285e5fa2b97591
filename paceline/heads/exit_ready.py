"""Exits made ready for decoding: packed weights on a CPU, and bounds by what layers and heads cost on this machine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from ..cost import cost_curve, seconds_of
from ..targets.pack import can_pack, pack
from ..tree import Tree
from .belongs import check_belongs
from .exit import ExitHeads, Exits, LogitLens, fires
from .exit_config import ExitConfig
from .exit_cost import Bounds, Costs, best_bounds
from .exit_format import load
from .exit_settings import ExitSettings
from .shipped import exits_folder

WIDTH = 8  # of exits without a profile
_CONTEXT, _TIMES = 64, 6

_ready: WeakKeyDictionary[Any, dict[Path, ExitHeads]] = WeakKeyDictionary()  # by target
_costs: WeakKeyDictionary[Exits, Costs] = WeakKeyDictionary()


def ready_exits(target: Any, exits: str | Path | Exits | None, layers: Sequence[int] | None = None) -> Exits:
    """Exits for decoding with this target (an HFTarget): an object, a folder, `lens` for the logit lens, or None for those that are
    shipped with the target, the lens where there are none. `layers` are those at which the lens reads.

    A folder is read once per target. Raises UnsupportedModel if the target's layers cannot be run one by one, CheckpointMismatch for
    another target's heads.
    """
    _ = target.runner  # made now, which raises
    if exits is not None and not isinstance(exits, str | Path):
        check_belongs(exits.config, target)
        return exits
    folder = exits_folder(exits, target.name)
    if folder is None:
        return LogitLens(target, ExitConfig.for_target(target, layers or ()))
    known = _ready.setdefault(target, {})
    if folder not in known:
        known[folder] = quicken(load(folder, target))
    return known[folder]


def choose_bounds(target: Any, exits: Exits, told: ExitSettings, width: int | None) -> Bounds:
    """What is told, and for the rest what is quickest by the exits' profile and the costs on this machine. Exits without a profile get
    the bounds of the paper (spec 7)."""
    config = exits.config
    threshold = config.threshold if told.threshold is None else told.threshold
    if config.profile is None:
        return Bounds(threshold, told.depth or (told.layers or config.layers)[-1], width or WIDTH)
    shares = config.profile.only(told.layers or config.layers)
    return best_bounds(shares, exit_costs(target, exits), threshold=threshold, depth=told.depth, width=width)


@torch.no_grad()
def quicken(heads: ExitHeads) -> ExitHeads:
    """Pack heads in place where that is possible; they cannot be trained or saved afterwards."""
    dtype, weight = heads.output_weight.dtype, heads.output_weight
    if can_pack(dtype, weight.device):
        linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=dtype)
        linear.weight.copy_(weight)
        heads.output = pack(nn.Sequential(linear), dtype).forward
        heads.output_weight = weight[:0].clone()
        pack(heads.maps, dtype)
    return heads


@torch.inference_mode()
def exit_costs(target: Any, exits: Exits) -> Costs:
    """Seconds of a decoder layer on one token, of an exit head and of whole forwards, measured once for these exits."""
    if exits not in _costs:
        depth = exits.config.layers[-1]
        layer = head = math.inf
        slot = target.cache.open(_CONTEXT + 1)

        def climb() -> torch.Tensor:
            target.cache.truncate(slot, _CONTEXT)
            states: torch.Tensor = target.layers(range(depth), [Tree.chain([0])], [slot])
            return states

        try:
            target.prefill([slot], [[i % target.vocab_size for i in range(_CONTEXT)]])
            state = climb()
            for _ in range(_TIMES):
                layer = min(layer, seconds_of(climb))
                head = min(head, seconds_of(lambda: fires(exits.logits(depth, state), 1.0, 0.5)))
        finally:
            target.cache.free(slot)
        _costs[exits] = Costs(layer / depth, head, cost_curve(target))
    return _costs[exits]
