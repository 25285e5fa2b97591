"""Exits made ready for decoding: packed weights on a CPU, and bounds by what layers and heads cost on this machine."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from ..cost import CostCurve
from ..draft import HeadStart
from ..targets.pack import can_pack, pack
from ..tree import Tree
from .belongs import check_belongs
from .exit import ExitHeads, Exits, LogitLens, fires
from .exit_config import ExitConfig
from .exit_cost import WORTH, Bounds, Costs, best_bounds
from .exit_format import load
from .exit_settings import ExitSettings
from .shipped import exits_folder

WIDTH = 8  # of exits without a profile
_CONTEXT, _TIMES, _ROWS = 64, 5, (1, 2, 4)

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
    """What is told, and for the rest what is quickest by the exits' profile and the costs on this machine. Where nothing is told and the
    quickest is not worth it, there will be no drafts, and a warning. Exits without a profile get the bounds of the paper (spec 7)."""
    config = exits.config
    if config.profile is None:
        threshold = config.threshold if told.threshold is None else told.threshold
        return Bounds(threshold, told.depth or (told.layers or config.layers)[-1], width or WIDTH)
    shares = config.profile.only(told.layers or config.layers)
    free = told.threshold is None and told.depth is None and width is None
    found = best_bounds(shares, exit_costs(target, exits), threshold=told.threshold, depth=told.depth, width=width)
    if free and found.speedup < WORTH:
        logging.getLogger("paceline").warning(
            "self-drafting is expected to make %s %.2f times as quick on this machine, which other prompts may undo, so specbound drafts "
            "nothing and decodes plainly; an exit setting such as threshold=0.5 makes it draft",
            target.name,
            found.speedup,
        )
        return replace(found, width=0, speedup=1.0)
    return found


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


def exit_costs(target: Any, exits: Exits, *, clock: Callable[[], float] = time.perf_counter) -> Costs:
    """What the parts of a round cost on this machine, in seconds; measured once for these exits.

    They are taken from whole rounds, in turns: a layer that is run again and again finds its weights in the processor's cache, and in a
    round it does not. A round without drafts is a plain one in parts, so these are scaled to add up to what that takes: what the choice
    depends on is their proportion, and a machine is not always as quick.
    """
    if exits not in _costs:
        slot = target.cache.open(_CONTEXT + max(_ROWS))
        try:
            target.prefill([slot], [[i % target.vocab_size for i in range(_CONTEXT)]])
            _costs[exits] = _costs_of(_Bench(target, exits, slot, clock))
        finally:
            target.cache.free(slot)
    return _costs[exits]


def _costs_of(bench: _Bench) -> Costs:
    layers, far = bench.target.num_layers, max(2, bench.target.num_layers * 2 // 3)
    for _ in range(_TIMES):
        bench.plain()
        bench.round(1, 1)
        for rows in _ROWS:
            bench.round(far, rows)
    least = bench.least
    plain = least["plain", 0, 1]
    scale = plain / (least["climb", far, 1] + least["rest", far, 1])
    one = max(least["climb", far, 1] - least["climb", 1, 1], 0.0) / (far - 1)
    layer = [one + (least["climb", far, n] - least["climb", far, 1]) / far for n in _ROWS]
    tail = [max(least["rest", far, n] - (layers - far) * each, 0.0) for n, each in zip(_ROWS, layer, strict=True)]
    curves = [CostCurve(_ROWS, tuple(scale * seconds for seconds in each)) for each in (layer, tail)]
    call = scale * max(least["climb", 1, 1] - one, 0.0)
    return Costs(layers, plain, call, curves[0], least["head", far, 1], curves[1])


class _Bench:
    """Times the parts of rounds behind one context. `least` has the least seconds by part, depth and rows."""

    def __init__(self, target: Any, exits: Exits, slot: int, clock: Callable[[], float]) -> None:
        self.target, self._exits, self._slot, self._clock = target, exits, slot, clock
        self.least: dict[tuple[str, int, int], float] = {}

    def plain(self) -> None:
        self._timed(("plain", 0, 1), lambda: self.target.verify([Tree.chain([0])], [self._slot]).logits)
        self._clear()

    def round(self, depth: int, rows: int) -> None:
        """So many rows go to this depth together, then a head is asked of the last one, then they are verified."""
        tree, deepest = Tree.chain([0] * rows), self._exits.config.layers[-1]
        state = self._timed(("climb", depth, rows), lambda: self.target.layers(range(depth), [tree], [self._slot]))
        self._timed(("head", depth, rows), lambda: fires(self._exits.logits(deepest, state[-1:]), 1.0, 0.5))
        start = HeadStart((depth,) * rows, state)
        self._timed(("rest", depth, rows), lambda: self.target.verify([tree], [self._slot], (), [start]).logits)
        self._clear()

    @torch.inference_mode()
    def _timed(self, part: tuple[str, int, int], run: Callable[[], torch.Tensor]) -> torch.Tensor:
        began = self._clock()
        found = run()
        float(found.flatten()[0])  # a GPU is done only then
        self.least[part] = min(self.least.get(part, math.inf), self._clock() - began)
        return found

    def _clear(self) -> None:
        self.target.cache.truncate(self._slot, _CONTEXT)
