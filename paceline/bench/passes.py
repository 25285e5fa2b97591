"""Each prompt is decoded up to three times, and read once: plainly and greedily, greedily with the method, and sampled with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import engine
from ..draft import Drafter
from ..methods import Options, build
from ..rules.walk import Rule
from ..sampling import SamplingParams
from ..sequence import Sequence as Request
from ..stats import Stats
from ..targets.hf import HFTarget
from .capture import Recorder
from .compare import Outputs

BATCH = 16  # sequences decoded at once
Tell = Callable[[int], Any]  # hears of the tokens of each round


@dataclass
class Decoded:
    """What came of it. `stats` are of the sampled pass."""

    plain: Outputs = field(default_factory=dict)
    greedy: Outputs = field(default_factory=dict)
    stats: Stats = field(default_factory=Stats)


def decode_all(
    target: HFTarget,
    method: tuple[str, Options],
    prompts: dict[str, list[int]],
    sampled: Sequence[SamplingParams],
    *,
    max_new_tokens: int,
    recorder: Recorder,
    tell: Tell,
) -> Decoded:
    """Decode all prompts (id -> token ids), a batch at a time. `sampled` are the settings of each prompt's sampled pass, or empty for
    none; its decisions go to `recorder`."""
    done, names = Decoded(), list(prompts)
    greedy = SamplingParams(max_new_tokens)
    for start in range(0, len(names), BATCH):
        batch = names[start : start + BATCH]
        seqs = [Request(prompts[n], greedy, eos_token_ids=target.eos_token_ids, max_length=target.max_length) for n in batch]
        try:
            _run(target, *build("none", target), seqs, tell)
            done.plain |= _outputs(batch, seqs)
            drafter, rule = build(method[0], target, method[1])
            _again(target, seqs, [greedy] * len(seqs))
            _run(target, drafter, rule, seqs, tell)
            done.greedy |= _outputs(batch, seqs)
            if sampled:
                _again(target, seqs, sampled[start : start + BATCH])
                _run(target, drafter, recorder.rule, seqs, tell, done.stats)
        finally:
            for seq in seqs:
                engine.release(target, seq)
    return done


def _run(target: HFTarget, drafter: Drafter, rule: Rule, seqs: list[Request], tell: Tell, stats: Stats | None = None) -> None:
    """Decode to the end; the slots stay open."""
    for round_ in engine.rounds(target, drafter, rule, seqs):
        tell(len(round_.tokens))
        if stats is not None:
            stats.add(round_)


def _outputs(names: list[str], seqs: list[Request]) -> Outputs:
    return {name: [seq.output] for name, seq in zip(names, seqs, strict=True)}


def _again(target: HFTarget, seqs: list[Request], params: Sequence[SamplingParams]) -> None:
    """Back to the prompts, which stay in the cache."""
    for seq, each in zip(seqs, params, strict=True):
        engine.next_turn(target, seq, seq.tokens[: seq.prompt_length], each)
