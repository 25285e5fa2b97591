"""The rounds that decoding a known text would take, without the target's forwards.

A rule that draws from the target and then looks for that token in the draft (`match`, and every rule in greedy decoding) gives a text that
does not depend on the drafter. So what a drafter would have had accepted is found by asking it at the places where decoding would.

Axes: T tokens, F features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

from .draft import Draft, Drafter
from .engine import Round
from .sampling import SamplingParams
from .sequence import Sequence as Request

BATCH = 16


class Recording:
    """A drafter that proposes as another does, and has the loop keep the features of these layers."""

    def __init__(self, drafter: Drafter, layer_ids: Sequence[int]) -> None:
        self._drafter, self.siblings = drafter, drafter.siblings
        self.target_layer_ids = tuple(layer_ids) or drafter.target_layer_ids

    def propose(self, seqs: Sequence[Request]) -> list[Draft]:
        return self._drafter.propose(seqs)


@dataclass(frozen=True)
class Text:
    """What the target said, and the features of all tokens but the last, where a drafter wants some."""

    key: str
    domain: str
    tokens: Sequence[int]  # (T,)
    prompt_length: int
    features: torch.Tensor | None = None  # (T - 1, F)
    temperature: float = 0.0  # at which the target said it


def replay(
    drafter: Drafter,
    texts: Iterable[Text],
    batch_size: int = BATCH,
    *,
    layer_ids: Sequence[int] | None = None,
    first_slot: int = 0,
    after: Callable[[list[Draft]], Any] = lambda drafts: None,
) -> Iterator[tuple[Text, Round]]:
    """Yield each text's rounds in order, several texts in turn.

    Args:
        layer_ids: of the texts' features, if they are more than the drafter's own.
        first_slot: drafters tell texts apart by their slots, which are numbered from here in the order of the texts; those of finished
            texts are used again.
        after: hears of the drafts of each round.
    """
    waiting, free = iter(texts), list(range(first_slot, first_slot + batch_size))
    layer_ids = drafter.target_layer_ids if layer_ids is None else tuple(layer_ids)
    live: list[tuple[Text, Request]] = []
    while True:
        live += [(text, _request(text, free.pop(0), layer_ids)) for text in islice(waiting, len(free))]
        if not live:
            return
        for text, seq in live:
            if text.features is not None:
                seq.add_features(text.features[seq.num_features : len(seq.tokens) - 1])
        drafts = drafter.propose([seq for _, seq in live])
        after(drafts)
        for (text, seq), draft in zip(live, drafts, strict=True):
            known = len(seq.tokens)
            path = draft.tree.follow([seq.root, *text.tokens[known:-1]])
            new = seq.extend(text.tokens[known : known + len(path) - 1], text.tokens[known + len(path) - 1])
            yield text, Round(seq, new, len(new) - 1, draft, path, seq.finish_reason)
        free += [seq.slot for _, seq in live if seq.finish_reason and seq.slot is not None]
        live = [(text, seq) for text, seq in live if seq.finish_reason is None]


def _request(text: Text, slot: int, layer_ids: Sequence[int]) -> Request:
    """The prompt, with room for exactly the known answer."""
    answer = len(text.tokens) - text.prompt_length
    seq = Request(text.tokens[: text.prompt_length], SamplingParams(max_new_tokens=answer, temperature=text.temperature))
    seq.slot = slot
    seq.keep_features(0, layer_ids)
    return seq
