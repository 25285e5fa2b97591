"""The result of a run: the last head that was deployed, in bfloat16, with its figures in its card."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...heads import formats
from .. import evaluate, folder
from ..card import shared
from ..disk import put

if TYPE_CHECKING:
    from .head_lab import HeadLab


def publish(lab: HeadLab, current: Path, figures: dict[str, Any]) -> Path:
    """Write `head/`: the head in `current` with the card of the head that the run began with, and what the rounds brought."""
    head, old = lab.load(current), formats.read(lab.start).card
    decoded = evaluate.decoding(*lab.acceptance(head), head.config.depth)
    own = {
        "method": "jetspec",
        "evaluation": {"decoding": {"budget": lab.recipe.evaluation.budget, "prompts": len(lab.judges), **decoded}},
        "rcsd": {"recipe": shared(lab.recipe), **figures},
        **folder.about(lab.target.device),
    }
    to = lab.out / "head"

    def write(scratch: Path) -> None:
        formats.save(head, scratch, card={**old, **own})
        (scratch / "README.md").write_text(page(lab.target.name, own), "utf-8")

    put(to, write)
    return to


def page(name: str, facts: dict[str, Any]) -> str:
    """The model card."""
    rcsd, decoded = facts["rcsd"], facts["evaluation"]["decoding"]
    start = rcsd["start"]
    lines = [f"| {d} | {start[d]:.2f} | {length:.2f} |" for d, length in decoded["by_task"].items()]
    rounds = [f"- {r['name']}: {'deployed' if r['deployed'] else 'not deployed'}; {r['reason']}" for r in rcsd["rounds"]]
    return "\n".join(
        [
            f"---\nbase_model: {name}\ntags: [speculative-decoding, jetspec, paceline]\n---\n",
            f"# A JetSpec head for {name}, trained further on its own accepted and refused drafts\n",
            "RCSD-style training of an earlier head; its card and the recipe are in card.json.\n",
            f"Mean acceptance length (1 + accepted / rounds) on {decoded['prompts']} held-out texts, greedy, {decoded['budget']} nodes:\n",
            "| domain | before | after |\n| --- | --- | --- |",
            *lines,
            "\nRounds:\n",
            *rounds,
            "",
        ]
    )
