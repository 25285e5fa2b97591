"""THE TABLE: what a method's name builds.

A method is named `drafter`, `drafter/rule` or `drafter+drafter`. To add a drafter or a rule: one file, and one line here. Concrete
classes are imported inside functions, so that `paceline --help` stays quick.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .errors import InvalidRequest

if TYPE_CHECKING:
    from .draft import Drafter
    from .rules.walk import Rule
    from .targets.base import Target


@dataclass(frozen=True)
class Options:
    """What a drafter may be told. None leaves the drafter's own default; an option that a method does not read is an error."""

    num_speculative_tokens: int | None = None
    budget: int | None = None
    draft_model: Any = None  # a Target

    def given(self) -> set[str]:
        return {name for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class Entry:
    """One line of the table."""

    build: Callable[..., Any]
    help: str
    options: frozenset[str] = frozenset()


def _none(target: Target, rule: Rule) -> Drafter:
    from .drafters.none import NoDrafter

    return NoDrafter()


def _lookup(target: Target, rule: Rule, **options: Any) -> Drafter:
    from .drafters.lookup import LookupDrafter

    return LookupDrafter(**options)


def _draft_model(target: Target, rule: Rule, draft_model: Any = None, **options: Any) -> Drafter:
    from .draft import Siblings
    from .drafters.draft_model import DraftModelDrafter

    if draft_model is None:
        raise InvalidRequest("method draft_model needs a draft model; give one with --draft-model (draft_model= in Python)")
    return DraftModelDrafter(draft_model, target.vocab_size, sampled=Siblings.FIXED not in rule.needs, **options)


def _match() -> Rule:
    from .rules.match import match

    return match


def _rejection() -> Rule:
    from .rules.rejection import rejection

    return rejection


_TREE = frozenset({"num_speculative_tokens", "budget"})

DRAFTERS: dict[str, Entry] = {
    "none": Entry(_none, "plain decoding, the baseline"),
    "lookup": Entry(_lookup, "copies what followed the last words earlier in prompt and output", _TREE),
    "draft_model": Entry(_draft_model, "a small model with the same tokenizer drafts a tree", _TREE | {"draft_model"}),
}

RULES: dict[str, Entry] = {
    "match": Entry(_match, "draw from the target and look among the candidates; lossless for all drafters"),
    "rejection": Entry(_rejection, "speculative sampling of one sampled candidate per position; lossless"),
}


def parse(method: str) -> tuple[list[str], str]:
    """Drafter names and the rule's name. Raises InvalidRequest for a name that is not in the table."""
    names, _, rule = method.partition("/")
    drafters, rule = names.split("+"), rule or "match"
    for name in drafters:
        if name not in DRAFTERS:
            raise InvalidRequest(f"unknown method {name!r}; the drafters are {', '.join(DRAFTERS)} (join two with +)")
    if rule not in RULES:
        raise InvalidRequest(f"unknown rule {rule!r}; the rules are {', '.join(RULES)}")
    if len(set(drafters)) < len(drafters):
        raise InvalidRequest(f"method {method!r} names a drafter twice")
    return drafters, rule


def reads(method: str) -> frozenset[str]:
    """The fields of Options that this method's drafters read."""
    return frozenset().union(*(DRAFTERS[name].options for name in parse(method)[0]))


def build(method: str, target: Target, options: Options | None = None) -> tuple[Drafter, Rule]:
    """The drafter and the rule of a method, for this target. Raises InvalidRequest for options that would have no effect."""
    options = options or Options()
    names, rule_name = parse(method)
    for field in ("num_speculative_tokens", "budget"):
        value = getattr(options, field)
        if value is not None and value < 1:
            raise InvalidRequest(f"{field} is {value}; it must be at least 1")
    if idle := sorted(options.given() - reads(method)):
        raise InvalidRequest(f"method {method!r} does not use {', '.join(idle)}; leave it out or choose another method")
    rule = RULES[rule_name].build()
    drafters = []
    for name in names:
        chosen = {field: getattr(options, field) for field in options.given() & DRAFTERS[name].options}
        drafters.append(DRAFTERS[name].build(target, rule, **chosen))
    if len(drafters) == 1:
        return drafters[0], rule
    from .drafters.merge import MergedDrafter

    return MergedDrafter(drafters, options.budget or max(getattr(d, "budget", 1) for d in drafters)), rule
