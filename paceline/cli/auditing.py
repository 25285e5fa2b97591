"""What `paceline audit` does with its options: checks them, loads what they name and audits it."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from ..bench import audit, environment, suites
from ..bench.audit import Plan, Report
from ..bench.given import read_laws
from ..bench.run import encode_all
from ..errors import InvalidRequest
from ..heads.exit_settings import parsed as exit_settings_of
from ..heads.shipped import exits_folder
from ..lossy import parsed
from ..methods import Options, build_rule, check, parse
from ..targets.hf import HFTarget
from .common import EMBEDDED, Models, flags, load_models
from .console import Progress, counting, quiet_transformers

Given = dict[str, Any]  # the options that were given, by name


def on_laws(file: Path, rule: str | None, width: int | None, given: Given, sizes: Given) -> Report:
    """The audit of given laws. `given` are options of decoding, which have no effect here."""
    if given:
        raise InvalidRequest(f"{flags(given)} no effect with --laws, which decodes nothing; leave it out")
    if rule is None or width is None:
        raise InvalidRequest("--laws needs --rule and --width, the number of children per node")
    parse(f"draft_model/{rule}")
    p, q = read_laws(file)
    with counting() as advance:
        made = audit.audit_laws(build_rule(rule), p, q, width, advance=advance, **sizes)
    return made | _about({"laws": file, "rule": rule, "width": width, **sizes}, None)


def decoded(rule: str | None, given: Given, sizes: Given) -> Report:
    """The audit of a method. Everything that can be checked without a model is checked before one is loaded."""
    method, plan = method_of(rule, given.get("method")), _plan(given, sizes)
    told: Given = {name: given[name] for name in ("shape", "num_speculative_tokens", "memory", "thresholds", "exits") if name in given}
    told |= {"rule_settings": parsed(given.get("rule_settings", [])), "exit_settings": exit_settings_of(given.get("exit_settings", []))}
    options = Options(draft_model=given.get("draft_model"), **told)
    if "draft_model" in parse(method)[0] and options.draft_model is None:
        raise InvalidRequest(f"method {method} needs a draft model; give one with --draft-model")
    check(method, options)
    if options.exits is not None:
        exits_folder(given["exits"], given.get("model", EMBEDDED))  # raises where there are none
    if "draft_weights" in given and options.draft_model is None:
        raise InvalidRequest("--draft-weights has no effect without a draft model; give --draft-model or leave it out")
    prompts = suites.choose(suites.read(given.get("prompts")), given.get("limit", audit.LIMIT))
    quiet_transformers()
    with Progress() as say:
        target, draft = load_models(Models(**{f.name: given[f.name] for f in fields(Models) if f.name in given}), say)
    encoded = dict(zip((p.id for p in prompts), encode_all(target, prompts), strict=True))
    with counting() as advance:
        made = audit.audit(target, method, replace(options, draft_model=draft), encoded, plan, advance)
    settings = {"model": EMBEDDED, "limit": audit.LIMIT, **given, **vars(plan), "method": method}
    return made | {"prompts": list(encoded)} | _about(settings, target)


def refuse(idle: Given, where: str) -> None:
    """Raise InvalidRequest for options that were given and have no effect there."""
    if found := [name for name, value in idle.items() if value is not None]:
        raise InvalidRequest(f"{flags(found)} no effect {where}; leave it out")


def method_of(rule: str | None, method: str | None) -> str:
    """The method that --rule or --method names. Raises InvalidRequest unless one of them is given."""
    if (rule is None) == (method is None):
        raise InvalidRequest("give --rule (for method draft_model/RULE) or --method, one of them; `paceline methods` lists both")
    return method or f"draft_model/{rule}"


def _plan(given: Given, sizes: Given) -> Plan:
    sampling = {name: given[name] for name in ("top_p", "top_k") if name in given} | sizes
    if given.get("temperature") == 0 and sampling:
        raise InvalidRequest(f"{flags(sampling)} no effect at temperature 0, where nothing is drawn; leave it out")
    return Plan(**sampling, **{name: given[name] for name in ("temperature", "max_new_tokens") if name in given})


def _about(settings: Given, target: HFTarget | None) -> Report:
    """Settings, versions, commit, hardware and command, as the bench has them."""
    import scipy

    paths = ("model", "draft_model", "prompts", "laws", "memory", "thresholds", "exits")
    shown = {name: environment.scrub(str(value)) if name in paths else value for name, value in settings.items()}
    commit, dirty = environment.commit()
    made = {
        "settings": shown,
        "versions": environment.versions() | {"scipy": scipy.__version__},
        "commit": commit,
        "uncommitted_changes": dirty,
    }
    if target is not None:
        shown["dtype"] = str(target.dtype).removeprefix("torch.")
        made["hardware"] = environment.hardware(target.device)
    return made | {"command": environment.typed_as("paceline")}
