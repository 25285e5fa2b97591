"""What the adaptive drafter starts with: the drafters at hand, and what is known of them.

First that is what a profile or a short measurement says. What requests then show is kept for later ones of the same target in this process:
what rounds take, how long answers get, whether drafting pays, and of each drafter its price and worth.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from ..cost import first_cost_curve
from ..draft import Drafter
from ..drafters.earlier import Earlier
from ..drafters.part import GUESS_MODEL, GUESS_WEIGHT, Known, Mean, Part, Steps
from ..errors import PacelineError
from ..live_cost import LiveCosts
from ..options import Entry, Options
from ..table import DRAFTERS, RULES
from . import profile as profiles
from .profile import Profile

_OF_ANY = frozenset({"num_speculative_tokens", "budget"})  # who gives another option means one drafter, and wants to hear of its errors


Key = tuple[str, ...]  # of a drafter: its name, its model, and how it was told to draft


@dataclass(frozen=True)
class Start:
    """Drafters with what is known of each, what rounds cost by batch size, what earlier requests have shown, and where that comes from."""

    parts: list[Part]
    costs: LiveCosts
    earlier: Earlier
    basis: str


@dataclass
class _Learnt:
    """What all requests of a target share. Whatever they write into it changes speed, never text."""

    costs: LiveCosts
    earlier: Earlier = field(default_factory=Earlier)
    known: dict[Key, Known] = field(default_factory=dict)
    requests: int = 0


def available(target: Any, options: Options) -> tuple[dict[str, Drafter], dict[str, str]]:
    """Each drafter of the table that proposes fixed children and can be built for this target with what is at hand, and what the
    others lack. Raises a PacelineError for an option that only one drafter reads and that cannot be used."""
    rule = RULES["match"].build()
    found, lacking = {}, {}
    for name, entry in DRAFTERS.items():
        if "FIXED" not in entry.siblings:
            continue
        told = _told(entry, options)
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


def _told(entry: Entry, options: Options) -> dict[str, Any]:
    return {name: getattr(options, name) for name in options.given() & entry.options}


def assemble(target: Any, options: Options, profile: str | Path | None = None) -> Start:
    """From a profile: this file, or what the cache holds for this target; without one, from a measurement of about a second. And from what
    earlier requests with the same start have shown.

    Raises CheckpointMismatch for a named profile of another machine or model.
    """
    found, _ = available(target, options)
    profiled = _profile(target, profile)
    basis = "a short measurement" if profiled is None else f"the profile of {profiled.made}"
    learnt = _learnt.setdefault(target, {})
    if basis not in learnt:
        learnt[basis] = _Learnt(LiveCosts({1: first_cost_curve(target)} if profiled is None else profiled.cost))
    shared = learnt[basis]
    parts = [_part(name, drafter, options, shared, profiled) for name, drafter in found.items()]
    if shared.requests:
        basis += f", and {shared.requests} earlier request{'s' * (shared.requests > 1)}"
    shared.requests += 1
    return Start(parts, shared.costs, shared.earlier, basis)


def _part(name: str, drafter: Drafter, options: Options, shared: _Learnt, profiled: Profile | None) -> Part:
    """With what is known of a drafter that drafts in this way, the same object for all requests."""
    model, told = model_of(drafter), _told(DRAFTERS[name], options)
    key = (name, model, *sorted(f"{option}={value}" for option, value in told.items() if option not in ("draft_model", "head")))
    tuned = profiled.drafters.get(name) if profiled else None
    if tuned is not None and tuned.model != model:
        tuned = None
    if key not in shared.known:
        shared.known[key] = Known.of(tuned.known) if tuned else _first(drafter, DRAFTERS[name])
    known = shared.known[key]
    steps = _steps(drafter, known if tuned else None)
    return Part(name, drafter, known, measure=None if tuned else _measure(drafter, steps), steps=steps)


def _first(drafter: Drafter, entry: Entry) -> Known:
    """Before it has been asked."""
    if entry.cheap:
        return Known({1: 0.0})
    if (model := getattr(drafter, "model", None)) is not None:
        return Known(catch_up=first_cost_curve(model)(24) / 24, gains=[Mean(guess, GUESS_WEIGHT) for guess in GUESS_MODEL])
    return Known()


def _measure(drafter: Any, steps: Steps | None) -> Callable[[int], float] | None:
    """Its price by the number of sequences, where that can be told without a text."""
    if (head := getattr(drafter, "head", None)) is not None:
        from ..heads.decode import draft_seconds

        return lambda count: draft_seconds(head, count)
    if steps is not None:
        return lambda count: drafter.depth * steps.seconds(count)
    return None


def _steps(drafter: Any, tuned: Known | None) -> Steps | None:
    """Its forwards, if it lets itself be told when to stop. What one takes is measured, but for a drafter of which a profile says what
    whole drafts take."""
    if not hasattr(drafter, "goes_on"):
        return None
    if tuned is not None:
        return Steps(drafter, lambda count: tuned.price(count) / drafter.depth)
    curve = first_cost_curve(drafter.model)
    return Steps(drafter, lambda count: curve(2 * count))


def model_of(drafter: Any) -> str:
    """What a drafter drafts with, as a profile names it; empty for one that needs no model."""
    if (model := getattr(drafter, "model", None)) is not None:
        if model not in _named:
            from ..origin import origin_of

            _named[model] = f"{model.name} {sum(origin_of(model, 'none').target_marks):.5g}"
        return _named[model]
    head = getattr(drafter, "head", None)
    return "" if head is None else f"head of {sum(p.numel() for p in head.parameters())} numbers for {head.config.target_name}"


_learnt: WeakKeyDictionary[Any, dict[str, _Learnt]] = WeakKeyDictionary()  # by target and basis
_named: WeakKeyDictionary[Any, str] = WeakKeyDictionary()  # what `model_of` says, by draft model
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
