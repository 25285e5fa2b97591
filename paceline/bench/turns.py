"""Second turns and later ones: each is a prompt of its own, behind the target's own plain greedy answers to the turns before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from .. import api
from ..sampling import SamplingParams
from ..targets.hf import HFTarget
from .suites import Prompt

_BATCH = 8


def follow_up(target: HFTarget, prompts: Sequence[Prompt], turns: int, max_new_tokens: int, say: Callable[[str], Any]) -> list[Prompt]:
    """The prompts, each followed by its second turn as `ID#2` and so on, up to this many. All runs get the same answers before it, so that
    what they decode is the same; the work is in no time."""
    made = {p.id: [p] for p in prompts}
    params = SamplingParams(max_new_tokens=max_new_tokens)
    for turn in range(2, turns + 1):
        last = {
            name: found[-1] for name, found in made.items() if len(found) == turn - 1 and len(found[-1].turns) > len(found[-1].answers) + 1
        }
        say(f"answering {len(last)} prompts, for turn {turn}")
        answers = api.generate(target, [p.asked for p in last.values()], params, method="none", batch_size=_BATCH)
        for (name, prompt), answer in zip(last.items(), answers, strict=True):
            made[name].append(replace(prompt, id=f"{name}#{turn}", answers=(*prompt.answers, answer.text)))
    target.cache = type(target.cache)()
    return [prompt for found in made.values() for prompt in found]
