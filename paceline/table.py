"""THE TABLE: what each name builds.

To add a drafter or a rule: one file, and one line here. Concrete classes are imported inside functions, so that `paceline --help` stays
quick. `methods` reads the table.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .errors import InvalidRequest
from .lossy import check_fits, configured
from .options import Entry, Options

if TYPE_CHECKING:
    from .draft import Drafter
    from .drafters.part import Part
    from .live_cost import LiveCosts
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
    shape = shape or default_shape(rule)
    if shape is None:
        return DraftModelDrafter(draft_model, target.vocab_size, keeps_beliefs=rule.reads_beliefs, **sizes)
    made = Shape.parse(shape, **sizes)
    return DraftModelDrafter(draft_model, target.vocab_size, siblings=siblings, shape=made, keeps_beliefs=rule.reads_beliefs)


def default_shape(rule: Rule) -> str | None:
    """The shape of a draft model's tree for this rule; None is a tree that grows where it is likeliest."""
    from .draft import Siblings

    if Siblings.FIXED in rule.needs:
        return None
    return "chain" if rule.chain_only else "2x2"


def _jetspec(target: Target, rule: Rule, head: Any = None, budget: int | None = None, **options: Any) -> Drafter:
    from .cost import cost_curve
    from .drafters.jetspec import JetSpecDrafter
    from .heads.decode import draft_seconds, ready_head

    found = ready_head(target, head)
    if budget is None:  # then what a node costs here decides
        return JetSpecDrafter(found, cost=cost_curve(target).plus(draft_seconds(found)), **options)
    return JetSpecDrafter(found, budget=budget, **options)


def _auto(target: Target, rule: Rule, profile: Any = None, budget: int | None = None, **options: Any) -> Drafter:
    from .drafters.auto import BUDGET
    from .tune.assemble import assemble

    found = assemble(target, Options(budget=budget or BUDGET, **options), profile)
    return adaptive(found.parts, found.costs, earlier=found.earlier, budget=budget or BUDGET, basis=found.basis)


def adaptive(parts: Sequence[Part], costs: LiveCosts, **settings: Any) -> Drafter:
    """The adaptive drafter over these parts (see `drafters.auto`)."""
    from .drafters.auto import AutoDrafter

    return AutoDrafter(parts, costs, **settings)


def _specbound(
    target: Any, rule: Rule, exits: Any = None, exit_settings: Mapping[str, Any] | None = None, num_speculative_tokens: int | None = None
) -> Drafter:
    from .draft import Siblings
    from .drafters.specbound import SpecBoundDrafter
    from .heads.exit_ready import choose_bounds, ready_exits
    from .heads.exit_settings import ExitSettings

    told = ExitSettings.read(exit_settings)
    found = ready_exits(target, exits, told.layers)
    bounds = choose_bounds(target, found, told, num_speculative_tokens)
    siblings = next(kind for name in DRAFTERS["specbound"].siblings if (kind := Siblings[name]) in rule.needs)
    return SpecBoundDrafter(target, found, bounds, layers=told.layers, annealing=told.annealing, siblings=siblings)


def merged(drafters: Sequence[Any], budget: int | None) -> Drafter:
    """One tree of several drafters. It is cut once, as a whole: by a measured cost curve if one of them has one, and they lose theirs."""
    from .cost import TYPICAL
    from .drafters.merge import MergedDrafter

    curves = [getattr(d, "cost", None) for d in drafters]
    cost = None if None in curves else next((c for c in curves if c not in TYPICAL.values()), curves[0])
    if cost is not None:
        for drafter in drafters:
            drafter.cost = None
    return MergedDrafter(drafters, budget or max(getattr(d, "budget", 1) for d in drafters), cost)


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
    from .rules.csd import csd
    from .rules.csd_config import PRESETS
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


def _control(name: str) -> Callable[..., Rule]:
    """The builder of the control of a lossy rule."""

    def build(base: Rule | None = None, options: Options | None = None, origin: Origin | None = None, target: Any = None) -> Rule:
        from .rules import csd_config, easd_config
        from .rules.csd import random_rescue
        from .rules.easd import random_veto
        from .rules.match import match
        from .rules.spelling import Spelling

        known: dict[str, tuple[Callable[..., Rule], Mapping[str, Any]]] = {
            "random_rescue": (random_rescue, csd_config.RANDOM_PRESETS),
            "random_veto": (random_veto, easd_config.RANDOM_PRESETS),
        }
        made, presets = known[name]
        return made(base or match, configured(name, presets, options or Options()), Spelling.of(target))

    return build


_LOSSY = frozenset({"rule_mode", "rule_settings"})
TREE = frozenset({"num_speculative_tokens", "budget"})
_DRAWN = ("FIXED", "WITHOUT_REPLACEMENT", "IID", "TOP_AND_DRAW")  # the first that the rule needs

DRAFTERS: dict[str, Entry] = {
    "none": Entry(_none, "plain decoding, the baseline", siblings=()),
    "lookup": Entry(_lookup, "copies what followed the last words earlier in prompt and output", TREE, cheap=True),
    "draft_model": Entry(
        _draft_model, "a small model with the same tokenizer drafts a tree", TREE | {"draft_model", "shape"}, _DRAWN, beliefs=True
    ),
    "jetspec": Entry(_jetspec, "a trained head on the target's features drafts a tree in one forward", TREE | {"head"}),
    "specbound": Entry(
        _specbound,
        "the target's own early layers draft where they are confident",
        frozenset({"num_speculative_tokens", "exits", "exit_settings"}),
        ("FIXED", "WITHOUT_REPLACEMENT"),
        on_target=True,
    ),
}
_TOLD = frozenset().union(*(entry.options for entry in DRAFTERS.values())) - {"shape"} | {"profile"}
DRAFTERS["auto"] = Entry(_auto, "the default: measures what pays and drafts with that, or not at all", _TOLD, siblings=(), adapts=True)

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
    "random_rescue": Entry(_control("random_rescue"), "the control of csd: rescues by lot. LOSSY", _LOSSY, page="csd", wraps=True),
    "easd": Entry(_easd, "vetoes what both models are unsure of, around another rule. LOSSY", _LOSSY | {"thresholds"}, wraps=True),
    "random_veto": Entry(_control("random_veto"), "the control of easd: vetoes by lot. LOSSY", _LOSSY, page="easd", wraps=True),
}
