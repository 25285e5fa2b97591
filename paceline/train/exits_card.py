"""What is known about trained exit heads: `card.json` for programs and README.md for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ..heads.exit import ExitHeads
from ..targets.hf import HFTarget
from . import card, examples, folder
from .checkpoint import Progress
from .data import Prepared
from .exits_recipe import ExitRecipe


def facts(
    recipe: ExitRecipe,
    target: HFTarget,
    heads: ExitHeads,
    prepared: Prepared,
    progress: Progress,
    evaluation: dict[str, Any],
    ids: torch.Tensor | None,
) -> dict[str, Any]:
    """Everything in one record."""
    config = heads.config
    return {
        "method": "specbound",
        "target": {"name": recipe.model, "revision": recipe.revision, "dtype": str(target.dtype).removeprefix("torch.")},
        "layers": list(config.layers),
        "annealing": config.annealing,
        "threshold": config.threshold,
        "parameters": sum(p.numel() for p in heads.parameters()),
        "draft_vocabulary": {
            "size": config.draft_vocab_size or config.vocab_size,
            "coverage": round(examples.coverage(prepared.train, ids), 4),
        },
        "data": {**prepared.figures, "answers_regenerated": recipe.answers.source == "target", "licences": prepared.licences},
        "training": {"steps": progress.step, "seconds": round(progress.elapsed), "recipe": card.shared(recipe)},
        "evaluation": evaluation,
        **folder.about(target.device),
    }


def page(facts: dict[str, Any]) -> str:
    """The card for people."""
    target = facts["target"]
    parts = [
        f"---\nbase_model: {target['name']}\ntags: [speculative-decoding, specbound, paceline]\n---\n",
        f"# Exit heads for {target['name']}\n",
        f"They read the next token off layers {', '.join(map(str, facts['layers']))}, so that the target can draft for itself; it checks "
        f"all drafts, so the text stays its own. {facts['parameters'] / 1e6:.1f} million parameters; norm and output matrix are the "
        "target's.\n",
        f'```bash\npaceline generate "..." --model {target["name"]} --method specbound --exits FOLDER --stats\n```\n',
        card.about_data(facts["data"]),
        card.about_training(facts),
        _evaluation(facts["evaluation"], facts["annealing"], facts["threshold"]),
        "**Licences.** The heads derive from the target and from the prompts. Prompts: "
        + (", ".join(facts["data"]["licences"]) or "none stated")
        + ".\n",
    ]
    return "\n".join(parts)


def _evaluation(evaluation: dict[str, Any], annealing: float, threshold: float) -> str:
    if not evaluation:
        return "**Evaluation.** None: there were no held-out prompts.\n"
    text, decoded = evaluation["text"], evaluation["decoding"]
    layers, errors = list(text["agreement"]), text["calibration_error"]
    return (
        f"**Evaluation.** Agreement with the target's likeliest token at {text['positions']} held-out positions:\n\n"
        f"| layers | {' | '.join(layers)} |\n|{' --- |' * (len(layers) + 1)}\n"
        f"| before training | {_cells(evaluation['untrained']['agreement'].values())} |\n"
        f"| after | {_cells(text['agreement'].values())} |\n\n"
        f"Expected calibration error: {errors['by_annealing']['0.0']:.4f} without annealing, "
        f"{errors['by_annealing'][str(annealing)]:.4f} at the fitted strength {annealing}, {errors['free']:.4f} with a free temperature "
        f"for each layer. Threshold {threshold}. Decoding {decoded['prompts']} held-out prompts keeps "
        f"{decoded['mean_acceptance_length']:.2f} tokens a round (depth {decoded['depth']}, width {decoded['width']}).\n"
    )


def _cells(values: Iterable[float]) -> str:
    return " | ".join(f"{v:.3f}" for v in values)
