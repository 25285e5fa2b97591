"""An answer as a list of rounds, for the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .. import engine
from ..draft import Drafter
from ..engine import Round
from ..rules.ledger import Event
from ..rules.walk import Rule
from ..sequence import Sequence as Request
from ..stats import Stats
from ..targets.hf import HFTarget
from .nodes import Record, next_token, nodes
from .watch import Watch

Heard = Callable[[int], Any]  # tokens so far


def tell(target: HFTarget, drafter: Drafter, rule: Rule, seq: Request, heard: Heard = lambda tokens: None) -> Record:
    """Decode a sequence to its end; the rounds, the pieces of text by token, and the statistics. Needs a tokenizer."""
    watch, stats, told = Watch(rule), Stats(), list[Record]()
    seen: dict[str, int] = {}
    try:
        for round_ in engine.rounds(target, drafter, watch.rule, [seq]):
            stats.add(round_)
            assert watch.laws is not None, "every round has a walk"
            told.append(_round(target, round_, watch.laws.logits, _new(seq, seen)))
            heard(stats.tokens)
    finally:
        engine.release(target, seq)
    return {
        "rounds": told,
        "pieces": pieces(target.tokenizer, seq.output),
        "finish_reason": seq.finish_reason,
        "tokens": stats.tokens,
        "mean_acceptance_length": stats.mean_acceptance_length,
        "nodes_per_round": sum(len(r["nodes"]) for r in told) / max(1, len(told)),
    }


def _new(seq: Request, seen: dict[str, int]) -> dict[str, list[Event]]:
    """What lossy rules wrote down since the last round."""
    found = {name: ledger.events[seen.get(name, 0) :] for name, ledger in seq.ledgers.items()}
    seen.update({name: len(ledger.events) for name, ledger in seq.ledgers.items()})
    return found


def _round(target: HFTarget, round_: Round, logits: Any, events: dict[str, list[Event]]) -> Record:
    seq = round_.sequence
    length = len(seq.tokens) - len(round_.tokens)
    return {
        "start": length - seq.prompt_length,
        "count": len(round_.tokens),
        "path": round_.path,
        "nodes": nodes(round_, logits, events, length, lambda token: spelled(target.tokenizer, token)),
        "next": next_token(round_, events, length),
        "refused": [
            {"rule": name, "drafted": spelled(target.tokenizer, e.drafted), "target": spelled(target.tokenizer, e.target), "why": e.refusal}
            for name, found in events.items()
            for e in found
            if e.refusal is not None
        ],
    }


def spelled(tokenizer: Any, token: int) -> str:
    """A token by itself: with its spaces, and with special tokens by name."""
    return str(tokenizer.decode([token]))


def pieces(tokenizer: Any, tokens: Sequence[int]) -> list[str]:
    """The text that each token adds. A character of several tokens belongs to its last one."""
    found, done = [], ""
    for end in range(1, len(tokens) + 1):
        text = str(tokenizer.decode(tokens[:end]))
        whole = end == len(tokens) or not text.endswith("\ufffd")
        found.append(text[len(done) :] if whole else "")
        done = text if whole else done
    return found
