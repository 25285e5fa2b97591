"""THE TABLE: what a method's name builds.

A method is named `drafter`, `drafter/rule` or `drafter+drafter`. To add a drafter or a rule: one file, and one line here. Concrete
classes are imported inside functions, so that `paceline --help` stays quick.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .errors import IncompatibleRule, InvalidRequest
from .lossy import check_fits, check_settings, configured, pair
from .options import Entry as Entry
from .options import Options as Options

if TYPE_CHECKING:
    from .draft import Drafter
    from .origin import Origin
    from .rules.walk import Rule
    from .targets.base import Target


def _none(target: Target, rule: Rule) -> Drafter:
    from .drafters.none import NoDrafter

    return NoDrafter()


def _lookup(target: Target, rule: Rule, **options: Any) -> Drafter:
    from .cost import TYPICAL
    from .drafters.lookup import LookupDrafter

    cost = None if "budget" in options else TYPICAL.get(target.device.type, TYPICAL["cpu"])
    return LookupDrafter(**options, cost=cost)


def _draft_model(target: Target, rule: Rule, draft_model: Any = None, shape: str | None = None, **sizes: Any) -> Drafter:
    from .draft import Siblings
    from .drafters.draft_model import DraftModelDrafter
    from .drafters.shapes import Shape

    if draft_model is None:
        raise InvalidRequest("method draft_model needs a draft model; give one with --draft-model (draft_model= in Python)")
    siblings = next(kind for name in DRAFTERS["draft_model"].siblings if (kind := Siblings[name]) in rule.needs)
    shape = shape or _default_shape(rule)
    if shape is None:
        return DraftModelDrafter(draft_model, target.vocab_size, keeps_beliefs=rule.reads_beliefs, **sizes)
    made = Shape.parse(shape, **sizes)
    return DraftModelDrafter(draft_model, target.vocab_size, siblings=siblings, shape=made, keeps_beliefs=rule.reads_beliefs)


def _jetspec(target: Target, rule: Rule, head: Any = None, budget: int | None = None, **options: Any) -> Drafter:
    from .cost import cost_curve
    from .drafters.jetspec import JetSpecDrafter
    from .heads.decode import draft_seconds, ready_head

    found = ready_head(target, head)
    if budget is None:  # then what a node costs here decides
        return JetSpecDrafter(found, cost=cost_curve(target).plus(draft_seconds(found)), **options)
    return JetSpecDrafter(found, budget=budget, **options)


def _match() -> Rule:
    from .rules.match import match

    return match


def _rejection() -> Rule:
    from .rules.rejection import rejection

    return rejection


def _several(name: str) -> Callable[[], Rule]:
    """The builder of a rule for several candidates."""

    def build() -> Rule:
        from .rules import multi

        rule: Rule = getattr(multi, name)
        return rule

    return build


def _resispec_printed() -> Rule:
    from .rules.resispec import resispec_printed

    return resispec_printed


def _csd(base: Rule | None = None, options: Options | None = None, origin: Origin | None = None, target: Any = None) -> Rule:
    from .rules.csd import PRESETS, csd
    from .rules.match import match
    from .rules.memory_file import load
    from .rules.spelling import Spelling

    options = options or Options()
    memory = load(options.memory) if isinstance(options.memory, str | os.PathLike) else options.memory
    check_fits("the memory", getattr(memory, "origin", None), origin)
    return csd(base or match, memory, configured("csd", PRESETS, options), Spelling.of(target))


def _easd(base: Rule | None = None, options: Options | None = None, origin: Origin | None = None, target: Any = None) -> Rule:
    from .rules.easd import easd
    from .rules.easd_config import PRESETS
    from .rules.match import match
    from .rules.spelling import Spelling
    from .rules.thresholds import load

    options = options or Options()
    record = None if options.thresholds is None else load(options.thresholds)
    check_fits("the thresholds file", record.origin if record else None, origin)
    config = configured("easd", PRESETS, options, record.settings if record else {"mode": "shadow"})
    return easd(base or match, config, Spelling.of(target))


MATCH = "match"  # the rule if none is named
_LOSSY = frozenset({"rule_mode", "rule_settings"})
_TREE = frozenset({"num_speculative_tokens", "budget"})
_DRAWN = ("FIXED", "WITHOUT_REPLACEMENT", "IID", "TOP_AND_DRAW")  # the first that the rule needs

DRAFTERS: dict[str, Entry] = {
    "none": Entry(_none, "plain decoding, the baseline", siblings=()),
    "lookup": Entry(_lookup, "copies what followed the last words earlier in prompt and output", _TREE),
    "draft_model": Entry(
        _draft_model, "a small model with the same tokenizer drafts a tree", _TREE | {"draft_model", "shape"}, _DRAWN, beliefs=True
    ),
    "jetspec": Entry(_jetspec, "a trained head on the target's features drafts a tree in one forward", _TREE | {"head"}),
}

RULES: dict[str, Entry] = {
    "match": Entry(_match, "draw from the target and look among the candidates; lossless for all drafters"),
    "rejection": Entry(_rejection, "speculative sampling of one sampled candidate per position; lossless"),
    "naive": Entry(_several("naive"), "match for sampled candidates, a baseline; lossless", page="rrs"),
    "rrs": Entry(_several("rrs"), "each candidate by rejection from the residual, as SpecInfer; lossless"),
    "rrs_wor": Entry(_several("rrs_wor"), "the same for draws without replacement, as Sequoia; lossless", page="rrs"),
    "k_seq": Entry(_several("k_seq"), "accepts evenly over the candidates, as SpecTr; lossless", page="rrs"),
    "greedy_draft": Entry(_several("greedy_draft"), "the likeliest candidates and one draw; lossless", page="rrs"),
    "ramp": Entry(_several("ramp"), "accepts late and keeps the residual like the draft; lossless", page="resispec"),
    "ramp_wor": Entry(_several("ramp_wor"), "the same for draws without replacement; lossless", page="resispec"),
    "resispec_printed": Entry(_resispec_printed, "ResiSpec as published. LOSSY: another law than the target's", page="resispec"),
    "csd": Entry(_csd, "rescues what was rejected by habit, around another rule. LOSSY, bounded", _LOSSY | {"memory"}, wraps=True),
    "easd": Entry(_easd, "vetoes what both models are unsure of, around another rule. LOSSY", _LOSSY | {"thresholds"}, wraps=True),
}


def parse(method: str) -> tuple[list[str], str]:
    """Drafter names and the rule's name, which may join a rule and those around it: rejection+csd+easd.

    Raises InvalidRequest for a name that is not in the table, IncompatibleRule for a wrong pair.
    """
    names, _, rule = method.partition("/")
    drafters, rule = names.split("+"), rule or MATCH
    for name in drafters:
        if name not in DRAFTERS:
            raise InvalidRequest(f"unknown method {name!r}; the drafters are {', '.join(DRAFTERS)} (join two with +)")
    split_rule(rule)
    if len(set(drafters)) < len(drafters):
        raise InvalidRequest(f"method {method!r} names a drafter twice")
    if rule != MATCH:  # which takes all that there is, and spares the help its imports
        _check_pair(drafters, rule)
    return drafters, rule


def split_rule(rule: str) -> tuple[str, list[str]]:
    """The rule inside, match if none is named, and the rules around it from the inside out. Raises InvalidRequest."""
    names = rule.split("+")
    for name in names:
        if name not in RULES:
            raise InvalidRequest(f"unknown rule {name!r}; the rules are {', '.join(RULES)}")
    inside, around = [n for n in names if not RULES[n].wraps], [n for n in RULES if RULES[n].wraps and n in names]
    if len(inside) > 1 or len(set(names)) < len(names):
        raise InvalidRequest(f"rule {rule!r} joins what cannot be joined; name one rule and, each once, {_around()} (rejection+csd)")
    return (inside or [MATCH])[0], around


def _around() -> str:
    return " or ".join(name for name, entry in RULES.items() if entry.wraps)


def build_rule(name: str, options: Options | None = None, origin: Origin | None = None, target: Any = None) -> Rule:
    """A rule by its name, rules around it included: a veto goes outside of a rescue, so that it beats it.

    `origin` is compared with those of memory and thresholds, `target` says what its tokens spell.
    Raises InvalidRequest, CheckpointMismatch.
    """
    inside, around = split_rule(name)
    rule: Rule = RULES[inside].build()
    for wrapper in around:
        rule = RULES[wrapper].build(rule, options, origin, target)
    return rule


def _check_pair(drafters: list[str], rule: str) -> None:
    from .draft import Siblings

    built = build_rule(rule)
    needs = built.needs
    drawn = " or ".join(sorted(kind.value for kind in needs))
    if len(drafters) > 1 and Siblings.FIXED not in needs:
        raise IncompatibleRule(f"rule {rule} needs children drawn {drawn}, and trees of draws cannot be merged; use rule match")
    for name in drafters:
        if not any(Siblings[kind] in needs for kind in DRAFTERS[name].siblings):
            raise IncompatibleRule(
                f"rule {rule} needs children drawn {drawn}, which {name} does not propose; "
                "use rule match, or a drafter that samples (draft_model)"
            )
        if built.reads_beliefs and not (DRAFTERS[name].beliefs and len(drafters) == 1):
            raise IncompatibleRule(
                f"rule {rule} compares the draft's own probabilities with the target's, and {'+'.join(drafters)} hands none over; "
                "use rule match, or drafter draft_model"
            )


def _default_shape(rule: Rule) -> str | None:
    """The shape of a draft model's tree for this rule; None is a tree that grows where it is likeliest."""
    from .draft import Siblings

    if Siblings.FIXED in rule.needs:
        return None
    return "chain" if rule.chain_only else "2x2"


def reads(method: str, shape: str | None = None) -> frozenset[str]:
    """The fields of Options that this method's drafters read when told this shape, which they ignore if the rule wants a chain and it
    is none, and those that its rule reads. Raises InvalidRequest for a shape that is none."""
    names, rule = parse(method)
    around = split_rule(rule)[1]
    return frozenset().union(*(_reads(name, rule, shape) for name in names), *(RULES[name].options for name in around))


def _reads(drafter: str, rule: str, shape: str | None) -> frozenset[str]:
    options = DRAFTERS[drafter].options
    if "shape" not in options or (shape is None and rule == MATCH):
        return options
    from .drafters import shapes

    built = build_rule(rule)
    if shape is not None and built.chain_only and not shapes.Shape.parse(shape).is_chain:
        options, shape = options - {"shape"}, None
    shape = shape or _default_shape(built)
    return options if shape is None else options - _TREE | shapes.reads(shape)


def check(method: str, options: Options) -> None:
    """Raise InvalidRequest for options that are out of range or would have no effect. Needs no model."""
    for field in ("num_speculative_tokens", "budget"):
        value = getattr(options, field)
        if value is not None and value < 1:
            raise InvalidRequest(f"{field} is {value}; it must be at least 1")
    rule, drawn = parse(method)[1], "shape" in reads(method)
    if around := split_rule(rule)[1]:
        check_settings(rule, around, options)
        build_rule(rule, replace(options, memory=None, thresholds=None))  # raises for a setting that is none or out of range
    idle = sorted(options.given() - reads(method, options.shape))
    if drawn and "shape" in idle:
        raise InvalidRequest(f"rule {rule} verifies chains only, and shape {options.shape} is none; use chain, or another rule")
    if drawn and (shape := options.shape or (None if rule == MATCH else _default_shape(build_rule(rule)))):
        from .drafters import shapes

        sizes = options.given() & _TREE & (shapes.reads(shape) | {*idle})
        shapes.Shape.parse(shape, **{name: getattr(options, name) for name in sizes})  # says why not
    if idle:
        raise InvalidRequest(f"method {method!r} does not use {', '.join(idle)}; leave it out or choose another method")


def build(method: str, target: Target, options: Options | None = None) -> tuple[Drafter, Rule]:
    """The drafter and the rule of a method, for this target. Raises InvalidRequest for options that would have no effect."""
    options = options or Options()
    check(method, options)
    names, rule_name = parse(method)
    rule = build_rule(rule_name, options, pair(names, options, target), target)
    drafters = []
    for name in names:
        chosen = {field: getattr(options, field) for field in options.given() & _reads(name, rule_name, options.shape)}
        drafters.append(DRAFTERS[name].build(target, rule, **chosen))
    if len(drafters) == 1:
        return drafters[0], rule
    from .drafters.merge import MergedDrafter

    return MergedDrafter(drafters, options.budget or max(getattr(d, "budget", 1) for d in drafters), _take_cost(drafters)), rule


def _take_cost(drafters: list[Any]) -> Any:
    """The cost curve for a merged tree, a measured one if there is one: it is cut once, as a whole, so its drafters lose theirs."""
    from .cost import TYPICAL

    curves = [getattr(d, "cost", None) for d in drafters]
    if None in curves:
        return None
    for drafter in drafters:
        drafter.cost = None
    return next((c for c in curves if c not in TYPICAL.values()), curves[0])
