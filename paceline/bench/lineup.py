"""Which runs take part, on which models."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..errors import PacelineError
from ..targets.hf import HFTarget
from ..targets.load import check_same_tokenizer, load, load_draft, resolve
from .peers import ASSISTED, PeerModel, PeerRun, Unable
from .runs import MethodRun, Run
from .settings import Settings

Say = Callable[[str], Any]


@dataclass
class Lineup:
    """What runs, on which models. `skipped` says why a peer does not."""

    target: HFTarget
    runs: list[Run]
    peer_model: PeerModel | None = None
    skipped: dict[str, str] = field(default_factory=dict)
    loading_peak_mb: float = 0.0  # before any peer is loaded


def load_models(settings: Settings, say: Say) -> tuple[HFTarget, HFTarget | None]:
    """The target and the draft model, if there is one. Raises a PacelineError for a model that is not there or does not fit."""
    for name in filter(None, (settings.model, settings.draft_model)):
        resolve(name, None, say)  # a folder that is not there is known before anything is loaded
    target = load(settings.model, dtype=settings.dtype, progress=say)
    if settings.draft_model is None:
        return target, None
    draft = load_draft(settings.draft_model, dtype=settings.dtype, weights=settings.draft_weights, progress=say)
    check_same_tokenizer(target, draft)
    return target, draft


def line_up(settings: Settings, say: Say) -> Lineup:
    """Load the models and build the runs. Raises a PacelineError for what a method lacks; a peer that cannot run is skipped."""
    target, draft = load_models(settings, say)
    lineup = Lineup(target, method_runs(settings, target, draft), loading_peak_mb=peak_rss_mb())
    if settings.peers:
        add_peers(lineup, settings, lambda name: PeerModel.load(name, target.dtype, target.device, target.eos_token_ids, say))
    return lineup


def method_runs(settings: Settings, target: HFTarget, draft: HFTarget | None) -> list[Run]:
    """Our methods at the batch size, and above 1 at batch size 1 too, as `method@1`."""
    runs: list[Run] = [MethodRun(m, target, draft, settings, settings.batch_size) for m in settings.methods]
    if settings.batch_size > 1:
        runs += [MethodRun(m, target, draft, settings, 1, f"{m}@1") for m in settings.methods]
    return runs


def add_peers(lineup: Lineup, settings: Settings, load_peer: Callable[[str], PeerModel]) -> None:
    """Add the peers that can run. One model serves them all, and one draft model."""
    draft: PeerModel | None = None
    for peer in settings.peers:
        try:
            if lineup.peer_model is None:
                lineup.peer_model = load_peer(settings.model)
            if peer == ASSISTED and settings.draft_model is not None and draft is None:
                draft = load_peer(settings.draft_model)
            lineup.runs.append(PeerRun(peer, lineup.peer_model, draft, settings.temperature, settings.seed))
        except Exception as error:  # whatever a model makes of it: the others go on
            lineup.skipped[peer] = reason(error)


def reason(error: BaseException) -> str:
    """One line about what went wrong with a peer."""
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return first[:200] if isinstance(error, Unable | PacelineError) else f"{type(error).__name__}: {first}"[:200]


def peak_rss_mb() -> float:
    """The largest resident memory of this process so far, all models in it included."""
    unit = 1 if sys.platform == "darwin" else 1024
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20, 1)
