"""Which runs take part, on which models."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..errors import PacelineError
from ..targets.hf import HFTarget
from ..targets.load import EMBEDDED, embedded_gguf, load_pair, resolve
from . import memory
from .compare import Logits, target_logits
from .grid import Grid
from .peer_run import PeerRun
from .peers.common import Unable
from .peers.names import PLAIN, WITH_DRAFT, family_of
from .process import Worker
from .runs import MethodRun, Run
from .settings import Settings

Say = Callable[[str], Any]
Start = Callable[[str, dict[str, Any]], Worker]


@dataclass
class Lineup:
    """What runs, on which models. `skipped` says why a peer does not, and `left_out` is what there is to say of it."""

    target: HFTarget
    runs: list[Run]
    skipped: dict[str, str] = field(default_factory=dict)
    left_out: list[dict[str, Any]] = field(default_factory=list)
    workers: dict[str, Worker] = field(default_factory=dict)  # by family
    loading_peak_mb: float = 0.0

    def logits_of(self, method: str) -> Logits:
        """Of the model of a peer, and of the target where it is none or its process is gone."""
        ours = target_logits(self.target)

        def logits(tokens: Sequence[int]) -> torch.Tensor:
            try:
                return torch.tensor(self.workers[family_of(method)].ask("logits", tokens=list(tokens))["logits"])
            except Unable:
                return ours(tokens)

        return logits if method == PLAIN and PLAIN in self.workers else ours

    def close(self) -> None:
        """End the peers' processes."""
        for worker in self.workers.values():
            worker.stop()


def load_models(settings: Settings, say: Say, batch_size: int) -> tuple[HFTarget, HFTarget | None]:
    """The target and the draft model, if there is one, laid out for this batch size."""
    told = {name: getattr(settings, name) for name in ("model", "draft_model", "draft_weights", "dtype")}
    return load_pair(**told, batch_size=batch_size, progress=say)


def line_up(grid: Grid, say: Say, start: Start) -> Lineup:
    """Load the models and build the runs. Raises a PacelineError for what a method lacks; a peer that cannot run is skipped. `start` makes
    the worker of a family from what its models are loaded by."""
    target, draft = load_models(grid.settings, say, min(grid.batch_sizes))
    lineup = Lineup(target, method_runs(grid, target, draft), loading_peak_mb=memory.lifetime_mb())
    add_peers(lineup, grid, lambda family: start(family, told(grid.settings, target, say)), say)
    return lineup


def method_runs(grid: Grid, target: HFTarget, draft: HFTarget | None) -> list[Run]:
    """Our methods in every combination."""
    return [
        MethodRun(method, target, draft, chosen, chosen.batch_size, grid.name(method, chosen))
        for cell in grid.cells()
        for method in grid.settings.methods
        for chosen in grid.of_method(method, cell)
    ]


def told(settings: Settings, target: HFTarget, say: Say) -> dict[str, Any]:
    """What a peer's process loads its models by (see `peers.common.Peer`)."""
    model, revision = resolve(settings.model, None, say)
    draft = None
    if settings.draft_model is not None and any(peer in WITH_DRAFT for peer in settings.peers):
        draft = resolve(settings.draft_model, None, say)[0]
    return {
        "model": model,
        "revision": revision,
        "gguf": str(embedded_gguf()) if settings.model == EMBEDDED else os.path.expanduser(settings.model),
        "draft": draft,
        "dtype": str(target.dtype).removeprefix("torch."),
        "device": target.device.type,
        "threads": torch.get_num_threads(),
        "eos": sorted(target.eos_token_ids),
    }


def add_peers(lineup: Lineup, grid: Grid, start: Callable[[str], Worker], say: Say) -> None:
    """Add the peers in every combination that they can do. Those of one family share a process, and its models."""
    for cell in grid.cells():
        for peer in grid.settings.peers:
            name, family = grid.name(peer, cell), family_of(peer)
            say(f"starting {name}")
            try:
                if family not in lineup.workers:
                    lineup.workers[family] = start(family)
                lineup.runs.append(PeerRun(peer, lineup.workers[family], cell, name))
            except Unable as error:
                lineup.skipped[name] = reason(error)
                lineup.left_out.append({"run": name, "method": peer, "temperature": cell.temperature, "batch_size": cell.batch_size})


def reason(error: BaseException) -> str:
    """One line about what went wrong with a peer."""
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return first[:300] if isinstance(error, Unable | PacelineError) else f"{type(error).__name__}: {first}"[:300]
