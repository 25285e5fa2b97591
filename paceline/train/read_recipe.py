"""Recipes from YAML and dotted settings, and back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, overload

import yaml
from pydantic import ValidationError

from ..errors import InvalidRequest
from .recipe import Common, Recipe

Kind = TypeVar("Kind", bound=Common)


@overload
def read(file: Path | None, overrides: Mapping[str, Any]) -> Recipe: ...
@overload
def read(file: Path | None, overrides: Mapping[str, Any], kind: type[Kind]) -> Kind: ...
def read(file: Path | None, overrides: Mapping[str, Any], kind: type[Common] = Recipe) -> Common:
    """A recipe of this kind from a file, if any, with dotted keys set over it.

    Raises InvalidRequest naming the key, the value and what is wrong.
    """
    values = {} if file is None else _parse(file)
    for key, value in overrides.items():
        _set(values, key, value)
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise InvalidRequest("the recipe does not hold: " + "; ".join(map(_line, error.errors()[:5]))) from None


def parse_setting(text: str) -> tuple[str, Any]:
    """`key.of.section=value`, the value in YAML."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise InvalidRequest(f"--set {text!r} is no setting; write for example --set head.markov_rank=0")
    try:
        return key, yaml.safe_load(value)
    except yaml.YAMLError:
        raise InvalidRequest(f"--set {text!r} has a value that is no YAML; quote it") from None


def as_yaml(recipe: Common) -> str:
    return str(yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False, allow_unicode=True))


def _parse(file: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(file.read_text("utf-8"))
    except OSError as error:
        raise InvalidRequest(f"recipe {file} cannot be read ({error.strerror}); give a YAML file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"recipe {file} is no YAML ({' '.join(str(error).split())[:200]}); correct it") from None
    if not isinstance(values, dict):
        raise InvalidRequest(f"recipe {file} holds {type(values).__name__}, not sections with keys; see examples/recipes")
    return values


def _set(values: dict[str, Any], key: str, value: Any) -> None:
    *sections, last = key.split(".")
    for section in sections:
        inner = values.setdefault(section, {})
        if not isinstance(inner, dict):
            raise InvalidRequest(f"setting {key} does not exist: {section} is a value, not a section")
        values = inner
    values[last] = value


def _line(error: Any) -> str:
    where = ".".join(str(part) for part in error["loc"]) or "recipe"
    given = "" if error["type"] in ("missing", "value_error") else f" is {error['input']!r}"
    return f"{where}{given}: {error['msg'].removeprefix('Value error, ')}"
