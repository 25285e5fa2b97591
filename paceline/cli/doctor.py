"""`paceline doctor`: does this head belong to this target, and is it worth what its card says?"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import common, options
from .console import Progress, quiet_transformers, write

if TYPE_CHECKING:
    from ..bench.examine import Finding

Head = Annotated[Path, typer.Argument(help="Folder of the head.", show_default=False)]
Prompts = Annotated[Path | None, typer.Option(help="JSONL file with id, task and turns on each line. The default is a small built-in set.")]
Limit = Annotated[int, typer.Option(min=1, help="Prompts per task.")]
_VERDICT = {True: "ok", False: "NO", None: "?"}


def main(
    head: Head,
    model: options.Model = common.EMBEDDED,
    prompts: Prompts = None,
    limit: Limit = 1,
    max_new_tokens: options.MaxNewTokens = 64,
    dtype: options.Dtype = "auto",
    device: options.Device = "auto",
    as_json: options.Json = False,
) -> None:
    """Check a head against its target: layout, tensors, layer ids, tokenizer, fingerprint, and acceptance against its card.

    Exit code 1 if something is wrong, 2 if the folder holds no whole head.
    """
    from ..bench import suites
    from ..bench.examine import findings
    from ..heads import formats
    from ..targets.load import load

    chosen = suites.choose(suites.read(prompts), limit)
    stored = formats.read(head)
    quiet_transformers()
    with Progress() as progress:
        target = load(model, dtype=dtype, device=device, progress=progress)
        progress("measuring acceptance")
        found = list(findings(stored, target, chosen, max_new_tokens))
    healthy = all(f.ok is not False for f in found)
    if as_json:
        write(json.dumps({"head": str(head), "model": target.name, "healthy": healthy, "findings": [asdict(f) for f in found]}) + "\n")
    else:
        _print(found)
    if not healthy:
        raise typer.Exit(1)


def _print(found: Iterable[Finding]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("", "check", "found", box=None)
    for finding in found:
        table.add_row(_VERDICT[finding.ok], finding.check, finding.found)
    Console(file=sys.stdout, markup=False, highlight=False, emoji=False).print(table)
