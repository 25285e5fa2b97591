"""What drafters are worth on a target's own text, without decoding it again: it answers all prompts once, greedily, and drafters are
asked wherever decoding would ask them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import engine, methods
from ..draft import Draft, Drafter
from ..replay import Recording, Text, replay
from ..sampling import SamplingParams
from ..sequence import Sequence as Request

BATCH = 24


@dataclass
class Count:
    """Drafted tokens that each round kept, by text, and how many rounds had so many nodes."""

    kept: list[list[int]] = field(default_factory=list)
    nodes: Counter[int] = field(default_factory=Counter)

    @property
    def rounds(self) -> int:
        return sum(map(len, self.kept))

    @property
    def tokens(self) -> int:
        return self.rounds + sum(map(sum, self.kept))

    @property
    def mean_acceptance_length(self) -> float:
        return self.tokens / self.rounds if self.rounds else 1.0

    @property
    def nodes_per_round(self) -> float:
        return sum(self.nodes.elements()) / max(self.nodes.total(), 1)


def answers(
    target: Any,
    prompts: Mapping[str, Sequence[int]],
    max_new_tokens: int,
    layer_ids: Sequence[int] = (),
    *,
    batch_size: int = BATCH,
    tell: Callable[[int], Any] = lambda tokens: None,
) -> list[Text]:
    """The target's greedy answers to prompts (id -> token ids), with features of these layers. `tell` hears of the tokens of each round."""
    params = SamplingParams(max_new_tokens=max_new_tokens)
    made = {n: Request(p, params, eos_token_ids=target.eos_token_ids, max_length=target.max_length) for n, p in prompts.items()}
    names, found = {id(seq): name for name, seq in made.items()}, dict[str, Text]()
    for round_ in _kept(target, layer_ids, list(made.values()), batch_size):
        tell(len(round_.tokens))
        if round_.finish_reason:
            seq = round_.sequence
            features = None if seq.features is None else seq.features.clone()
            found[names[id(seq)]] = Text(names[id(seq)], "", list(seq.tokens), seq.prompt_length, features)
    return [found[name] for name in prompts]


def _kept(target: Any, layer_ids: Sequence[int], seqs: Sequence[Request], batch_size: int) -> Iterator[engine.Round]:
    """Plain rounds, a batch at a time, where the memory of a sequence is still there in its last one."""
    recording = Recording(methods.build("none", target)[0], layer_ids)
    waiting, live = list(seqs), list[Request]()
    try:
        while waiting or live:
            live += [waiting.pop(0) for _ in range(min(batch_size - len(live), len(waiting)))]
            for round_ in engine.rounds(target, recording, methods.build_rule("match"), live):
                yield round_
                if round_.finish_reason:
                    engine.release(target, round_.sequence)
                    live.remove(round_.sequence)
                    if waiting:
                        live.append(waiting.pop(0))
    finally:
        for seq in live:
            engine.release(target, seq)


def counted(
    drafter: Drafter,
    texts: Sequence[Text],
    layer_ids: Sequence[int] = (),
    *,
    first_slot: int = 0,
    after: Callable[[list[Draft]], Any] = lambda drafts: None,
) -> Count:
    """Ask a drafter wherever greedy decoding of these texts would, all of them at once (see `replay.replay`)."""
    count, place = Count([[] for _ in texts]), {id(text): i for i, text in enumerate(texts)}
    for text, round_ in replay(drafter, texts, len(texts), layer_ids=layer_ids, first_slot=first_slot, after=after):
        count.kept[place[id(text)]].append(round_.num_accepted)
        count.nodes[len(round_.draft.tree)] += 1
    return count
