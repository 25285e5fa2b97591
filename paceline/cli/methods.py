"""`paceline methods`: the table of drafters and rules."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from .console import write

Json = Annotated[bool, typer.Option("--json", help="Print one line of JSON instead of tables.")]


def main(as_json: Json = False) -> None:
    """List the drafters and rules that --method takes."""
    found = _table()
    if as_json:
        write(json.dumps(found) + "\n")
    else:
        _print(found)


def _table() -> dict[str, list[dict[str, Any]]]:
    from ..methods import DRAFTERS, RULES

    rules = []
    for name, entry in RULES.items():
        rule = entry.build()
        lossless = rule.lossless and not entry.wraps  # these are, as long as they only watch
        rules.append({"name": name, "help": entry.help, "lossless": lossless, "needs": sorted(kind.value for kind in rule.needs)})
    return {
        "drafters": [{"name": name, "help": entry.help, "options": sorted(entry.options)} for name, entry in DRAFTERS.items()],
        "rules": rules,
    }


def _print(found: dict[str, list[dict[str, Any]]]) -> None:
    from rich.console import Console
    from rich.table import Table

    drafters = Table("drafter", "what it does", "options", box=None)
    for row in found["drafters"]:
        drafters.add_row(row["name"], row["help"], " ".join("--" + name.replace("_", "-") for name in row["options"]))
    rules = Table("rule", "what it does", "lossless", "takes candidates that are", box=None)
    for row in found["rules"]:
        rules.add_row(row["name"], row["help"], "yes" if row["lossless"] else "NO", ", ".join(row["needs"]))
    console = Console(file=sys.stdout, markup=False, highlight=False)
    console.print(drafters, "", rules, "", sep="\n")
    console.print(
        "A method is named drafter, drafter/rule or drafter+drafter (their trees are merged). The rule is match if none is named; "
        "csd and easd go around another one, as in rejection+csd."
    )
