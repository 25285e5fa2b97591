"""What a method's name means: the drafter and the rule that it builds, and the options that it reads.

A method is named `drafter`, `drafter/rule` or `drafter+drafter`; `table` has the names.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .errors import IncompatibleRule, InvalidRequest
from .heads.exit_settings import ExitSettings
from .lossy import check_settings, pair
from .options import Entry as Entry
from .options import Options as Options
from .table import DRAFTERS as DRAFTERS
from .table import RULES as RULES
from .table import TREE, default_shape, merged

if TYPE_CHECKING:
    from .draft import Drafter
    from .origin import Origin
    from .rules.walk import Rule
    from .targets.base import Target

MATCH = "match"  # the rule if none is named


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
    if len(drafters) > 1 and (adaptive := [name for name in drafters if DRAFTERS[name].adapts]):
        raise InvalidRequest(
            f"method {method!r} joins {adaptive[0]} with another drafter, which it does by itself; name {adaptive[0]} alone"
        )
    if len(drafters) > 1 and (own := [name for name in drafters if DRAFTERS[name].on_target]):
        raise InvalidRequest(f"method {method!r} joins {own[0]}, whose work on the target's layers another tree would lose; name it alone")
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
        if DRAFTERS[name].adapts:
            raise IncompatibleRule(
                f"{name} is always lossless, and rule {rule} is not for it: use rule match, or name a drafter (lookup/{rule})"
            )
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
    shape = shape or default_shape(built)
    return options if shape is None else options - TREE | shapes.reads(shape)


def check(method: str, options: Options) -> None:
    """Raise InvalidRequest for options that are out of range or would have no effect. Needs no model."""
    for field in ("num_speculative_tokens", "budget"):
        value = getattr(options, field)
        if value is not None and value < 1:
            raise InvalidRequest(f"{field} is {value}; it must be at least 1")
    ExitSettings.read(options.exit_settings)  # raises for what cannot be
    rule, drawn = parse(method)[1], "shape" in reads(method)
    if around := split_rule(rule)[1]:
        check_settings(rule, around, options)
        build_rule(rule, replace(options, memory=None, thresholds=None))  # raises for a setting that is none or out of range
    idle = sorted(options.given() - reads(method, options.shape))
    if drawn and "shape" in idle:
        raise InvalidRequest(f"rule {rule} verifies chains only, and shape {options.shape} is none; use chain, or another rule")
    if drawn and (shape := options.shape or (None if rule == MATCH else default_shape(build_rule(rule)))):
        from .drafters import shapes

        sizes = options.given() & TREE & (shapes.reads(shape) | {*idle})
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
    return drafters[0] if len(drafters) == 1 else merged(drafters, options.budget), rule
