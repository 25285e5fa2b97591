"""From options to a loaded model and a method. What can be checked without the model is checked before it is loaded."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InvalidRequest
from ..heads.exit_settings import parsed as exit_settings_of
from ..heads.shipped import exits_folder, head_folder
from ..lossy import parsed
from ..methods import DRAFTERS, RULES, Options, parse, split_rule
from ..methods import check as check_options
from .console import Progress, quiet_transformers

if TYPE_CHECKING:
    from ..draft import Drafter
    from ..rules.walk import Rule
    from ..sampling import SamplingParams
    from ..targets.hf import HFTarget

EMBEDDED = "smollm2"
_OF_DRAFTERS = ("num_speculative_tokens", "budget", "shape", "head", "profile", "exits", "exit_settings")  # fields of Plan


@dataclass(frozen=True)
class Models:
    """What to load, and how."""

    model: str = EMBEDDED
    draft_model: str | None = None
    dtype: str = "auto"
    device: str = "auto"
    revision: str | None = None
    weights: str = "auto"
    draft_weights: str | None = None


@dataclass(frozen=True)
class Plan:
    """The method and what its drafter is told."""

    method: str
    num_speculative_tokens: int | None
    budget: int | None
    shape: str | None = None
    head: str | None = None
    rule_mode: str | None = None
    memory: str | None = None
    thresholds: str | None = None
    rule_settings: Mapping[str, str] | None = None
    profile: str | None = None
    exits: str | None = None
    exit_settings: Mapping[str, str] | None = None

    @property
    def lossy(self) -> dict[str, Any]:
        """What lossy rules are told."""
        return {name: getattr(self, name) for name in ("rule_mode", "memory", "thresholds", "rule_settings")}


@dataclass(frozen=True)
class Session:
    """Everything that decoding needs, ready."""

    target: HFTarget
    draft: HFTarget | None
    drafter: Drafter
    rule: Rule
    params: SamplingParams
    method: str


def chosen(given: Mapping[str, Any]) -> tuple[Models, Plan]:
    """What the options of a command that answers prompts name: models and method. Raises InvalidRequest for what cannot be read."""
    told = {f.name: given[f.name] for f in fields(Plan)}
    told["method"] = _with_rule(given["method"], given["rule"])
    told["rule_settings"] = parsed(given["rule_settings"] or [])
    told["exit_settings"] = exit_settings_of(given["exit_settings"] or [])
    return Models(**{f.name: given[f.name] for f in fields(Models)}), Plan(**told)


def _with_rule(method: str, rule: str | None) -> str:
    """The method's name with `--rule`. Raises InvalidRequest if it names one already."""
    if rule is None:
        return method
    if "/" in method:
        raise InvalidRequest(f"--rule {rule} and --method {method} both name a rule; leave one of them out")
    return f"{method}/{rule}"


def read_prompt(prompt: str) -> str:
    """The prompt, or stdin without its last line break if it is `-`."""
    if prompt == "-":
        prompt = sys.stdin.read().removesuffix("\n")
    if not prompt.strip():
        raise InvalidRequest("the prompt is empty; give some text")
    return as_text(prompt)


def as_text(read: str) -> str:
    """The same string. Raises InvalidRequest if the system read bytes that are not UTF-8."""
    try:
        read.encode()
    except UnicodeEncodeError:
        raise InvalidRequest("the prompt is not UTF-8 text; convert it first, for example with iconv") from None
    return read


def check(models: Models, plan: Plan, *, stream: bool | None, as_json: bool) -> None:
    """Raise InvalidRequest for an unknown method, and for options that are missing or would have no effect."""
    drafters, rule = parse(plan.method)
    told = plan.num_speculative_tokens, plan.budget, models.draft_model, plan.shape, plan.head
    options = Options(*told, profile=plan.profile, exits=plan.exits, exit_settings=plan.exit_settings, **plan.lossy)
    entries = [*(DRAFTERS[name] for name in drafters), *(RULES[name] for name in split_rule(rule)[1])]
    if idle := sorted(options.given() - frozenset().union(*(entry.options for entry in entries))):
        raise InvalidRequest(f"{flags(idle)} no effect with method {plan.method}; leave it out or choose another --method")
    if "draft_model" in drafters and models.draft_model is None:
        raise InvalidRequest("method draft_model needs a draft model; give one with --draft-model")
    if "jetspec" in drafters:
        head_folder(plan.head, models.model)  # raises where there is none
    check_options(plan.method, options)
    if plan.exits is not None:
        exits_folder(plan.exits, models.model)  # raises where there is none
    if plan.profile is not None:
        from ..tune.profile import read

        read(Path(plan.profile))  # raises where there is none
    if models.weights in ("int4", "int8"):
        raise InvalidRequest(
            f"--weights {models.weights} would make the target another model; only --draft-weights can be {models.weights}"
        )
    if models.draft_weights is not None and models.draft_model is None:
        raise InvalidRequest("--draft-weights has no effect without a draft model; give --draft-model or leave it out")
    if models.revision is not None and (models.model == EMBEDDED or os.path.exists(os.path.expanduser(models.model))):
        raise InvalidRequest(f"--revision has no effect with {models.model}, which is not on the hub; leave it out")
    if models.revision is not None and "@" in models.model:
        raise InvalidRequest(f"--revision {models.revision} and {models.model} both name a revision; give one of them")
    if stream and as_json:
        raise InvalidRequest("--stream has no effect with --json, which prints one line at the end; leave one of them out")


def streams(stream: bool | None, as_json: bool) -> bool:
    """Whether text is printed as it comes."""
    return not as_json and (sys.stdout.isatty() if stream is None else stream)


def sampling_params(given: Mapping[str, Any]) -> SamplingParams:
    """Sampling settings by a command's options. A seed is chosen if sampling needs one, so that a report can name it.

    Raises InvalidRequest for a bad value, and for sampling options at temperature 0.
    """
    told = {name: given[name] for name in ("top_p", "top_k", "min_p", "seed") if given.get(name) is not None}
    if given["temperature"] == 0 and told:
        raise InvalidRequest(f"{flags(told)} no effect at temperature 0 (greedy decoding); set --temperature or leave it out")
    from ..sampling import SamplingParams

    if given["temperature"] > 0:
        told.setdefault("seed", secrets.randbelow(2**31))
    return SamplingParams(
        max_new_tokens=given["max_new_tokens"],
        temperature=given["temperature"],
        repetition_penalty=given.get("repetition_penalty", 1.0),
        stop=tuple(given.get("stop") or ()),
        **told,
    )


def messages(system: str | None = None, user: str | None = None) -> list[dict[str, str]]:
    """The beginning of a conversation."""
    return [{"role": role, "content": text} for role, text in (("system", system), ("user", user)) if text is not None]


def flags(names: Iterable[str]) -> str:
    """The options by these names, with the verb that fits."""
    found = ["--" + name.replace("_", "-") for name in names]
    return f"{' and '.join(found)} {'has' if len(found) == 1 else 'have'}"


def open_session(models: Models, plan: Plan, params: SamplingParams, progress: Progress) -> Session:
    """Load the models and build the method. Raises a PacelineError that says what is wrong."""
    from .. import api

    quiet_transformers()
    target, draft = load_models(models, progress)
    told: dict[str, Any] = {name: getattr(plan, name) for name in _OF_DRAFTERS}
    drafter, rule = api.method_for(target, plan.method, draft, **told, **plan.lossy)
    return Session(target, draft, drafter, rule, params, plan.method)


def load_models(models: Models, progress: Progress, batch_size: int = 1) -> tuple[HFTarget, HFTarget | None]:
    """The target, and the draft model if there is one, laid out for batches of this size. Raises a PacelineError that says what is
    wrong."""
    from ..targets.load import load_pair

    told = vars(models) | {"draft_weights": models.draft_weights or "auto"}
    return load_pair(**told, batch_size=batch_size, progress=progress)
