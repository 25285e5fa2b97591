"""Keeping the rounds of a bench: a folder of records for each of our methods that drafts and whose text is the target's own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from ..errors import InvalidRequest
from ..methods import build_rule, parse
from .runs import MethodRun, Run


def recordable(method: str) -> bool:
    """Whether its rounds are something to learn from."""
    drafters, rule = parse(method)
    return drafters != ["none"] and build_rule(rule).lossless


def check(methods: Sequence[str]) -> None:
    """Raise InvalidRequest if there is nothing to record."""
    if not any(map(recordable, methods)):
        raise InvalidRequest(f"record has no effect on {', '.join(methods)}; leave it out, or add a lossless method that drafts")


def begin(runs: Sequence[Run], folder: Path) -> None:
    """From now on keep the rounds of each run in a folder of its own, named after the run."""
    for run in runs:
        if isinstance(run, MethodRun) and recordable(run.method):
            run.records = folder / re.sub(r"[^\w.+=-]+", "_", run.name)
