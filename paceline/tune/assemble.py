"""What the adaptive drafter starts with: the drafters at hand, and what a profile or a short measurement says of them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from ..cost import CostCurve, first_cost_curve
from ..draft import Drafter
from ..drafters.part import GUESS_MODEL, Mean, Part
from ..errors import PacelineError
from ..options import Entry, Options
from ..table import DRAFTERS, RULES
from . import profile as profiles
from .profile import Profile

_OF_ANY = frozenset({"num_speculative_tokens", "budget"})  # who gives another option means one drafter, and wants to hear of its errors


@dataclass(frozen=True)
class Start:
    """Drafters with what is known of each, cost curves by batch size, and where that comes from."""

    parts: list[Part]
    cost: Mapping[int, CostCurve]
    basis: str


def available(target: Any, options: Options) -> tuple[dict[str, Drafter], dict[str, str]]:
    """Each drafter of the table that proposes fixed children and can be built for this target with what is at hand, and what the
    others lack. Raises a PacelineError for an option that only one drafter reads and that cannot be used."""
    rule = RULES["match"].build()
    found, lacking = {}, {}
    for name, entry in DRAFTERS.items():
        if "FIXED" not in entry.siblings:
            continue
        told = {field: getattr(options, field) for field in options.given() & entry.options}
        if entry.on_target and not told.keys() - _OF_ANY:
            lacking[name] = f"{name} drafts with the target's own layers; give an option of its own to let it take part"
            continue
        try:
            found[name] = entry.build(target, rule, **told)
        except PacelineError as error:
            if told.keys() - _OF_ANY:
                raise
            lacking[name] = str(error)
    return found, lacking


def assemble(target: Any, options: Options, profile: str | Path | None = None) -> Start:
    """From a profile: this file, or what the cache holds for this target; without one, from a measurement of about a second.

    Raises CheckpointMismatch for a named profile of another machine or model.
    """
    found, _ = available(target, options)
    known = _profile(target, profile)
    if known is None:
        parts = [_measured(name, drafter, DRAFTERS[name]) for name, drafter in found.items()]
        return Start(parts, {1: first_cost_curve(target)}, "a short measurement")
    drafters = known.drafters
    parts = [
        Part.known(name, drafter, drafters[name].known)
        if name in drafters and drafters[name].model == model_of(drafter)
        else _measured(name, drafter, DRAFTERS[name])
        for name, drafter in found.items()
    ]
    return Start(parts, known.cost, f"the profile of {known.made}")


def _measured(name: str, drafter: Drafter, entry: Entry) -> Part:
    """A drafter of which only the price is known, where that can be told without a text."""
    if entry.cheap:
        return Part(name, drafter, {1: 0.0})
    if (head := getattr(drafter, "head", None)) is not None:
        from ..heads.decode import draft_seconds

        return Part(name, drafter, {1: draft_seconds(head)})
    if (model := getattr(drafter, "model", None)) is not None:
        curve, depth = first_cost_curve(model), getattr(drafter, "depth", 1)
        gains = [Mean(guess) for guess in GUESS_MODEL]
        return Part(name, drafter, {1: depth * curve(2)}, catch_up=curve(24) / 24, gains=gains)
    return Part(name, drafter)


def model_of(drafter: Any) -> str:
    """What a drafter drafts with, as a profile names it; empty for one that needs no model."""
    if (model := getattr(drafter, "model", None)) is not None:
        from ..origin import origin_of

        return f"{model.name} {sum(origin_of(model, 'none').target_marks):.5g}"
    head = getattr(drafter, "head", None)
    return "" if head is None else f"head of {sum(p.numel() for p in head.parameters())} numbers for {head.config.target_name}"


_found: WeakKeyDictionary[Any, Profile | None] = WeakKeyDictionary()  # what the cache holds, by target


def _profile(target: Any, file: str | Path | None) -> Profile | None:
    if file is not None:
        return profiles.read_for(Path(file), target)
    if target not in _found:
        _found[target] = _cached(target)
    return _found[target]


def _cached(target: Any) -> Profile | None:
    """What the cache holds for this target; None, with a warning, if that is of another machine or model."""
    file = profiles.default_file(target)
    if not file.is_file():
        return None
    try:
        return profiles.read_for(file, target)
    except PacelineError as error:
        logging.getLogger("paceline").warning("%s (ignored)", error)
        return None
