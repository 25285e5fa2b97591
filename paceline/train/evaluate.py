"""What a head is worth: acceptance by decoding with it, accuracy by position on held-out text, and calibrated temperatures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from .. import api, engine
from ..errors import InvalidRequest
from ..heads.jetspec import JetSpecHead
from ..sampling import SamplingParams
from ..stats import Stats
from ..targets.hf import HFTarget
from .batches import Batch
from .distill import slot_logits, slot_states
from .prompts import Row
from .step import Objective, add, means

_BATCH = 8
_TEMPERATURES = [0.5 * 1.05**i for i in range(40)]  # 0.5 to 3.4


def acceptance(
    target: HFTarget, method: tuple[Any, Any], rows: Sequence[Row], *, max_new_tokens: int, max_prompt_tokens: int
) -> dict[str, Any]:
    """Decode the first turn of each row greedily with a drafter and rule; pooled figures, by task and by depth.

    Prompts with more than `max_prompt_tokens` are left out, and counted.
    """
    requests = {id(r): (row, r) for row in rows if (r := _request(target, row, max_new_tokens, max_prompt_tokens)) is not None}
    if not requests:
        raise InvalidRequest(f"no evaluation prompt has at most {max_prompt_tokens} tokens; raise answers.max_prompt_tokens")
    pooled, tasks = Stats(), dict[str, Stats]()
    deepest = 0
    for round_ in engine.stream(target, *method, [r for _, r in requests.values()], _BATCH):
        pooled.add(round_)
        tasks.setdefault(requests[id(round_.sequence)][0].task, Stats()).add(round_)
        deepest = max(deepest, *round_.draft.tree.depth)
    counts = {"prompts": len(requests), "left_out": len(rows) - len(requests)}
    return decoding(pooled, tasks, deepest) | counts


def decoding(pooled: Stats, tasks: Mapping[str, Stats], deepest: int) -> dict[str, Any]:
    """What decoding with drafts of this depth came to, for a card."""
    return {
        "mean_acceptance_length": round(pooled.mean_acceptance_length, 4),
        "by_task": {name: round(stats.mean_acceptance_length, 4) for name, stats in sorted(tasks.items())},
        "acceptance_at": [round(pooled.acceptance_at(d), 4) for d in range(1, deepest + 1)],
        "tokens": pooled.tokens,
        "rounds": pooled.rounds,
    }


def _request(target: HFTarget, row: Row, max_new_tokens: int, max_prompt_tokens: int) -> Any:
    tokens = api.encode(target, row.turns[0])
    limit = min(max_prompt_tokens, (target.max_length or len(tokens) + 1) - 1)
    return api.request(target, tokens, SamplingParams(max_new_tokens=max_new_tokens)) if len(tokens) <= limit else None


@torch.no_grad()
def figures(head: JetSpecHead, objective: Objective, batches: Callable[[], Sequence[Batch]]) -> dict[str, Any]:
    """Loss, accuracy by position and simulated accepted length on these batches."""
    totals: dict[str, torch.Tensor] = {}
    for batch in batches():
        loss, sums = objective(head, batch)
        add(totals, loss, sums)
    return means(totals)


@torch.no_grad()
def temperatures(head: JetSpecHead, batches: Sequence[Batch]) -> tuple[float, ...]:
    """One per depth: the head's logits over it give the target's tokens the highest likelihood (of a grid). 1 where there is no token."""
    depths = head.config.depth
    grid = torch.tensor(_TEMPERATURES)
    total = torch.zeros(depths, len(grid))
    for batch in batches:
        tokens = batch.blocks
        hidden = slot_states(head, batch)
        labels = head.draft_index[tokens[..., 1:]]
        for depth in range(depths):
            rows = batch.supervised[..., depth] & (labels[..., depth] >= 0)
            logits = slot_logits(head, hidden[:, :, depth][rows], tokens[..., depth][rows])
            chosen = logits.gather(1, labels[..., depth][rows][:, None])[:, 0]
            for i, heat in enumerate(_TEMPERATURES):
                total[depth, i] += float(((logits / heat).logsumexp(-1) - chosen / heat).sum())
    best = [float(grid[row.argmin()]) if bool(row.any()) else 1.0 for row in total]
    return tuple(round(t, 4) for t in best)
