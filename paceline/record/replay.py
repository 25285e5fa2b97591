"""The rounds that decoding a known text would take, without the target's forwards.

A rule that draws from the target and then looks for that token in the draft (`match`, and every rule in greedy decoding) gives a text that
does not depend on the drafter. So what another drafter would have had accepted is found by asking it at the places where decoding would.

Axes: T tokens, F features.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import torch

from ..draft import Drafter
from ..engine import Round
from ..sampling import SamplingParams
from ..sequence import Sequence as Request


@dataclass(frozen=True)
class Text:
    """What the target said, and the features of all tokens but the last, of the drafter's own layers."""

    key: str
    domain: str
    tokens: tuple[int, ...]  # (T,)
    prompt_length: int
    features: torch.Tensor  # (T - 1, F)
    temperature: float = 0.0  # at which the target said it


def replay(drafter: Drafter, texts: Iterable[Text], batch_size: int = 16) -> Iterator[tuple[Text, Round]]:
    """Yield each text's rounds in order, several texts in turn."""
    waiting, free = iter(texts), list(range(batch_size))
    live: list[tuple[Text, Request]] = []
    while True:
        live += [(text, _request(text, free.pop(), drafter.target_layer_ids)) for text in islice(waiting, len(free))]
        if not live:
            return
        for text, seq in live:
            seq.add_features(text.features[seq.num_features : len(seq.tokens) - 1])
        for (text, seq), draft in zip(live, drafter.propose([seq for _, seq in live]), strict=True):
            known = len(seq.tokens)
            path = draft.tree.follow([seq.root, *text.tokens[known:-1]])
            new = seq.extend(text.tokens[known : known + len(path) - 1], text.tokens[known + len(path) - 1])
            yield text, Round(seq, new, len(new) - 1, draft, path, seq.finish_reason)
        free += [seq.slot for _, seq in live if seq.finish_reason and seq.slot is not None]
        live = [(text, seq) for text, seq in live if seq.finish_reason is None]


def _request(text: Text, slot: int, layer_ids: tuple[int, ...]) -> Request:
    answer = len(text.tokens) - text.prompt_length
    seq = Request(text.tokens[: text.prompt_length], SamplingParams(max_new_tokens=answer, temperature=text.temperature))
    seq.slot = slot
    seq.keep_features(0, layer_ids)
    return seq
