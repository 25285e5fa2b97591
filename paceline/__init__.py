"""Paceline: speculative decoding for Hugging Face models. Names are imported on first use, so that this stays quick."""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "api": ("Completion", "generate", "request", "stream"),
    "draft": ("Draft", "Drafter", "Siblings"),
    "engine": ("Round", "next_turn", "release", "rounds"),
    "errors": ("IncompatibleDraft", "IncompatibleRule", "InvalidRequest", "PacelineError", "PromptTooLong", "UnsupportedModel"),
    "rules.walk": ("Rule", "Verdict"),
    "sampling": ("SamplingParams",),
    "sequence": ("Sequence",),
    "targets.hf": ("HFTarget",),
    "targets.load": ("load",),
    "tree": ("Tree",),
}
_HOME = {name: module for module, names in _PUBLIC.items() for name in names}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}")
    return getattr(import_module(f"paceline.{_HOME[name]}"), name)
