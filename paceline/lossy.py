"""What rules around another one are told: their settings, and whether a file of theirs belongs to the models."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .errors import InvalidRequest
from .options import Options, named_values

if TYPE_CHECKING:
    from .origin import Origin

AROUND = ("csd", "random_rescue", "easd", "random_veto")


def configured(rule: str, presets: Mapping[str, Any], options: Options, first: Mapping[str, Any] | None = None) -> Any:
    """A preset, with what `first` says over it and what the options say over that. Raises InvalidRequest."""
    from .rules.ledger import configured as build

    own = {name.partition(".")[2]: value for name, value in (options.rule_settings or {}).items() if name.partition(".")[0] == rule}
    mode = {} if options.rule_mode is None else {"mode": options.rule_mode}
    return build(presets, {**(first or {}), **own, **mode}, rule)


def check_settings(rule: str, around: Sequence[str], options: Options) -> None:
    """Raise InvalidRequest for what is of no rule in `around`, said twice, or without effect."""
    settings = options.rule_settings or {}
    for name in settings:
        if name.partition(".")[0] not in around:
            raise InvalidRequest(f"setting {name!r} is of no rule in {rule}; it begins with {' or '.join(a + '.' for a in around)}")
    if options.rule_mode is not None and any(name.endswith(".mode") for name in settings):
        raise InvalidRequest("rule_mode and a setting both say the mode; leave one of them out")
    if options.rule_mode is not None:
        from .rules.ledger import check_mode

        check_mode(options.rule_mode)
    if options.rule_mode == "off" and (idle := sorted(options.given() & {"memory", "thresholds", "rule_settings"})):
        raise InvalidRequest(f"{', '.join(idle)} has no effect with rule_mode off; leave it out, or choose shadow or on")
    _check_files(options)


def _check_files(options: Options) -> None:
    """Read the files that are named, so that one that cannot be used is refused before any model is loaded."""
    if isinstance(options.memory, str | os.PathLike):
        from .rules import memory_file

        memory_file.load(options.memory)
    if options.thresholds is not None:
        from .rules import thresholds

        thresholds.load(options.thresholds)


def rules_around(method: str) -> list[str]:
    """The rules of a method that go around another one, from its name alone."""
    return [name for name in method.partition("/")[2].split("+") if name in AROUND]


def of_method(method: str, settings: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Of settings for several methods, those of this method's rules; None if there are none."""
    around = rules_around(method)
    return {name: value for name, value in (settings or {}).items() if name.partition(".")[0] in around} or None


def parsed(texts: Sequence[str]) -> dict[str, str] | None:
    """Settings from NAME=VALUE texts, None if there are none. Raises InvalidRequest."""
    return named_values(texts, "rule setting", like="csd.tau=0.05")


def pair(drafters: Sequence[str], options: Options, target: Any) -> Origin | None:
    """The models that are used, where a memory or thresholds must be compared with them."""
    if options.memory is None and options.thresholds is None:
        return None
    from .origin import origin_of

    return origin_of(target, options.draft_model if options.draft_model is not None else "+".join(drafters))


def check_fits(what: str, made: Origin | None, used: Origin | None) -> None:
    """Raise CheckpointMismatch if it was made for other models than those that are used, where both are known."""
    from .origin import check_origin

    if made is not None and used is not None:
        check_origin(what, made, used)
