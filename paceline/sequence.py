"""One request: its tokens, its settings and how it ends."""

from __future__ import annotations

from collections.abc import Sequence as Tokens
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from .errors import InvalidRequest, PromptTooLong
from .sampling import Random, SamplingParams


def common_prefix(a: Tokens[int], b: Tokens[int]) -> int:
    """How many tokens two lists share at the front."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


class Text(Protocol):
    """Watches the output's text for stop strings."""

    def push(self, token: int) -> bool: ...


@dataclass(frozen=True)
class Logprob:
    """Raw log-probability of an output token, and the likeliest alternatives as (token, log-probability)."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Sequence:
    """One request. Only the loop changes its tokens, through `extend`.

    Args:
        tokens: the prompt's ids. Raises InvalidRequest if empty, PromptTooLong if no token fits behind it.
        params: how to decode.
        eos_token_ids: ids that end the output with `finish_reason == "stop"`; they stay the last token.
        max_length: the target's context in tokens, prompt and output together.
        text: watches for stop strings; needed if `params.stop` is set.
    """

    def __init__(
        self,
        tokens: Tokens[int],
        params: SamplingParams | None = None,
        *,
        eos_token_ids: frozenset[int] = frozenset(),
        max_length: int | None = None,
        text: Text | None = None,
    ) -> None:
        self.eos_token_ids = eos_token_ids
        self.max_length = max_length
        self.tokens: list[int] = []
        self.slot: int | None = None
        self._features: torch.Tensor | None = None  # (capacity, F), of which the first `num_features` rows count
        self._feature_layers: tuple[int, ...] = ()
        self.num_features = 0
        self.restart(tokens, params or SamplingParams(), text)

    def restart(self, tokens: Tokens[int], params: SamplingParams, text: Text | None = None) -> None:
        """Take a new prompt, for example the next turn of a chat. What is cached of it is kept by `engine.next_turn`."""
        if not tokens:
            raise InvalidRequest("the prompt is empty; give at least one token of text")
        if self.max_length is not None and len(tokens) >= self.max_length:
            raise PromptTooLong(
                f"the prompt has {len(tokens)} tokens and the model's context {self.max_length}; shorten the prompt so that an answer fits"
            )
        if params.stop and text is None:
            raise InvalidRequest(f"stop strings {params.stop!r} need a tokenizer to watch the text; use stop_token_ids or give one")
        self.tokens = list(tokens)
        self.prompt_length = len(tokens)
        self.params = params
        self.text = text
        self.rng = Random(params.seed)
        self.finish_reason: str | None = None
        self.logprobs: list[Logprob] = []
        self.ledgers: dict[str, Any] = {}  # what lossy rules did to this request, by rule, see `rules.ledger`

    @property
    def root(self) -> int:
        """The last known token; the target has not seen it yet."""
        return self.tokens[-1]

    @property
    def output(self) -> list[int]:
        """The tokens generated for the current prompt."""
        return self.tokens[self.prompt_length :]

    @property
    def room(self) -> int:
        """How many tokens may still come. A draft deeper than `room - 1` is wasted: one token of a round is the target's own."""
        room = self.params.max_new_tokens - (len(self.tokens) - self.prompt_length)
        return room if self.max_length is None else min(room, self.max_length - len(self.tokens))

    def extend(self, accepted: Tokens[int], token: int) -> list[int]:
        """Take accepted draft tokens and the target's own next token, up to the first end: stop id, stop string, criterion or limit.

        Returns the tokens taken, at least one.
        """
        assert self.finish_reason is None, "a finished sequence cannot be extended"
        taken = []
        for new in (*accepted, token):
            self.tokens.append(new)
            taken.append(new)
            self.finish_reason = self._ended(new)
            if self.finish_reason:
                break
        return taken

    def _ended(self, token: int) -> str | None:
        stopped = self.text.push(token) if self.text else False
        if stopped or token in self.params.stop_token_ids or (token in self.eos_token_ids and not self.params.ignore_eos):
            return "stop"
        if self.params.stopping_criteria and self._criterion():
            return "stop"
        return "length" if self.room <= 0 else None

    def _criterion(self) -> bool:
        ids = torch.tensor([self.tokens])
        return any(bool(torch.as_tensor(c(ids, None)).any()) for c in self.params.stopping_criteria)

    @property
    def features(self) -> torch.Tensor | None:
        """(T, F) features of the cached tokens, if the drafter asked for any."""
        return self._features[: self.num_features] if self._features is not None and self.num_features else None

    def features_from(self, start: int, layer_ids: Tokens[int]) -> torch.Tensor:
        """(T - start, F) features of the cached tokens from `start` on, of these layers, which must be among those that are kept.

        A view where possible: use it before the next round.
        """
        assert self._features is not None, "no features are kept for this sequence"
        rows = self._features[start : self.num_features]
        if (*layer_ids,) == self._feature_layers:
            return rows
        each = rows.view(len(rows), len(self._feature_layers), -1)
        return torch.cat([each[:, self._feature_layers.index(i)] for i in layer_ids], -1)

    def add_features(self, rows: torch.Tensor) -> None:
        """Append (n, F) features of n newly cached tokens."""
        start, end = self.num_features, self.num_features + len(rows)
        if self._features is None or end > len(self._features):
            grown = rows.new_empty(max(end * 3 // 2, end + 64), rows.shape[1])
            if self._features is not None:
                grown[:start] = self._features[:start]
            self._features = grown
        self._features[start:end] = rows
        self.num_features = end

    def keep_features(self, length: int, layer_ids: Tokens[int] | None = None) -> None:
        """Forget the features of all but the first `length` tokens, and all of them if they are of other layers than these."""
        if layer_ids is not None and self._feature_layers != (*layer_ids,):
            length, self._feature_layers = 0, (*layer_ids,)
        self.num_features = min(self.num_features, length)
        if length == 0:
            self._features = None
