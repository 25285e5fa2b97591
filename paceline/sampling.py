"""Sampling settings, and the law that they make of a row of logits.

The order is that of Transformers: bias, penalties, bans, custom processors, then temperature, top-k, top-p, min-p. Temperature 0 is
greedy: the law is a point mass on the largest processed logit.

Axes: N nodes, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch

from .errors import InvalidRequest, NumericalError

Processor = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # (1, T) ids, (1, V) scores -> (1, V) scores


@dataclass(frozen=True)
class SamplingParams:
    """How one request is decoded. The defaults are greedy decoding of 128 tokens.

    `repetition_penalty` counts prompt and output as Transformers does; `frequency_penalty` and `presence_penalty` count the output as
    OpenAI does. `processors` are Transformers' `LogitsProcessor`s or any callable like them; each sees every kept token once and in
    order, and no rejected one. `stopping_criteria` are called as in Transformers, after every token. `logprobs` asks for the raw
    log-probability (before any processing) of each output token and of that many likeliest alternatives.

    Raises InvalidRequest naming the field and the value.
    """

    max_new_tokens: int = 128
    min_new_tokens: int = 0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = dataclasses.field(default_factory=dict)
    bad_words: tuple[tuple[int, ...], ...] = ()
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None
    logprobs: int | None = None
    processors: tuple[Processor, ...] = ()
    stopping_criteria: tuple[Callable[..., Any], ...] = ()

    def __post_init__(self) -> None:
        def need(ok: bool, field: str, wants: str) -> None:
            if not ok:
                raise InvalidRequest(f"{field} is {getattr(self, field)!r}; it must be {wants}")

        need(self.max_new_tokens >= 1, "max_new_tokens", "at least 1")
        need(0 <= self.min_new_tokens <= self.max_new_tokens, "min_new_tokens", f"between 0 and max_new_tokens ({self.max_new_tokens})")
        need(self.temperature >= 0 and math.isfinite(self.temperature), "temperature", "0 (greedy) or a positive number")
        need(self.top_k >= 0, "top_k", "0 (off) or a positive number")
        need(0 < self.top_p <= 1, "top_p", "above 0 and at most 1 (off)")
        need(0 <= self.min_p <= 1, "min_p", "between 0 (off) and 1")
        need(0 < self.repetition_penalty < math.inf, "repetition_penalty", "a positive number; 1 is off")
        need(math.isfinite(self.frequency_penalty), "frequency_penalty", "a number; 0 is off")
        need(math.isfinite(self.presence_penalty), "presence_penalty", "a number; 0 is off")
        need(all(self.bad_words), "bad_words", "non-empty lists of token ids")
        need(not isinstance(self.stop, str) and all(self.stop), "stop", "a list of non-empty strings")
        need(self.logprobs is None or self.logprobs >= 0, "logprobs", "None (off) or the number of alternatives")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @cached_property
    def _built_in(self) -> bool:
        """Whether any of our own processors is on."""
        on = (
            self.repetition_penalty != 1,
            self.frequency_penalty,
            self.presence_penalty,
            self.logit_bias,
            self.bad_words,
            self.min_new_tokens,
        )
        return any(on)

    @cached_property
    def raw(self) -> bool:
        """Whether the logits are used as the target returns them, but for temperature and truncation."""
        return not (self._built_in or self.processors)


class Context(Protocol):
    """What processing needs to know of a sequence."""

    tokens: list[int]
    prompt_length: int
    params: SamplingParams
    eos_token_ids: frozenset[int]
    ledgers: dict[str, Any]


def process(row: torch.Tensor, context: Context, extra: Sequence[int], custom: bool = True) -> torch.Tensor:
    """Bias, penalties, bans and processors, for the token that follows `context.tokens + extra`.

    Args: row (V,) logits, not changed; `custom` False leaves out the caller's processors (a drafter must not show them guesses).
    Returns (V,) logits.
    """
    params = context.params
    if params.raw:
        return row
    row = row.clone()
    tokens = [*context.tokens, *extra] if extra else context.tokens
    output = tokens[context.prompt_length :]
    for token, bias in params.logit_bias.items():
        if not 0 <= token < len(row):
            raise InvalidRequest(f"logit_bias names token {token}; the vocabulary has {len(row)} tokens")
        row[token] += bias
    if params.repetition_penalty != 1:
        ids = torch.tensor(list(set(tokens)), device=row.device)
        score, factor = row[ids], params.repetition_penalty
        row[ids] = torch.where(score < 0, score * factor, score / factor)
    if (params.frequency_penalty or params.presence_penalty) and output:
        counts = Counter(output)
        ids = torch.tensor(list(counts), device=row.device)
        times = torch.tensor(list(counts.values()), device=row.device, dtype=row.dtype)
        row[ids] -= params.frequency_penalty * times + params.presence_penalty
    for word in params.bad_words:
        if not 0 <= word[-1] < len(row):
            raise InvalidRequest(f"bad_words names token {word[-1]}; the vocabulary has {len(row)} tokens")
        if len(word) == 1 or tuple(tokens[1 - len(word) :]) == tuple(word[:-1]):
            row[word[-1]] = -math.inf
    if len(output) < params.min_new_tokens:
        for token in {*context.eos_token_ids, *params.stop_token_ids}:
            row[token] = -math.inf
    if custom and params.processors:
        ids = torch.tensor([tokens], device=row.device)
        for processor in params.processors:
            row = processor(ids, row[None])[0]
    return row


def truncate(row: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Temperature, top-k, top-p, min-p. Takes and returns (V,) logits, in float32 at least; what is cut off becomes -inf."""
    row = (row if row.dtype == torch.float64 else row.float()) / params.temperature
    if 0 < params.top_k < len(row):
        row = row.masked_fill(row < row.topk(params.top_k).values[-1], -math.inf)
    if params.top_p < 1:
        row = _top_p(row, params.top_p)
    if params.min_p > 0:
        row = row.masked_fill(row < row.max() + math.log(params.min_p), -math.inf)
    return row


def _top_p(row: torch.Tensor, top_p: float) -> torch.Tensor:
    """Keep the likeliest tokens until their mass reaches top_p. A partial sort serves almost always."""
    probs = torch.softmax(row, -1)
    for size in (min(1024, len(row)), len(row)):
        best, ids = probs.topk(size)
        before = best.cumsum(0) - best
        if size == len(row) or before[-1] >= top_p:
            break
    kept = ids[before < top_p]
    return torch.full_like(row, -math.inf).index_copy_(0, kept, row[kept])


_BLOCK = 512  # one running sum over 152k tokens took 1.7 ms, in blocks 0.1 ms


class Rng(Protocol):
    """The two random choices that a rule or a drafter makes."""

    def pick(self, probs: torch.Tensor) -> int:
        """An index drawn from (V,) probabilities, which need not be normalised."""
        ...

    def coin(self, prob: float) -> bool:
        """True with this probability."""
        ...


class Random:
    """Random choices from a request's own seed, so that they do not depend on its company in a batch."""

    def __init__(self, seed: int | None = None) -> None:
        self._generator = torch.Generator()
        self._generator.seed() if seed is None else self._generator.manual_seed(seed)

    def pick(self, probs: torch.Tensor) -> int:
        """The inverse of the distribution function at one uniform number, in float64: first the block, then the place in it."""
        probs = probs.cpu()
        blocks = torch.nn.functional.pad(probs, (0, -len(probs) % _BLOCK)).view(-1, _BLOCK)
        sums = blocks.sum(1, dtype=torch.float64).cumsum(0)
        point = float(torch.rand((), generator=self._generator, dtype=torch.float64) * sums[-1])
        assert point < float(sums[-1]), f"no token can be drawn: the probabilities sum to {float(sums[-1])}"
        block = int(torch.searchsorted(sums, point, right=True))
        inside = blocks[block].to(torch.float64).cumsum(0)
        place = int(torch.searchsorted(inside, point - float(sums[block - 1]) if block else point, right=True))
        if place == _BLOCK:  # the two sums differ by rounding
            place = int(blocks[block].nonzero()[-1])
        return block * _BLOCK + place

    def coin(self, prob: float) -> bool:
        return bool(torch.rand((), generator=self._generator, dtype=torch.float64) < prob)


class TargetProbs:
    """The target's law after each node of one draft, as the request asks for it.

    Rows are made when a rule looks at them, which is along the accepted path only: sorting a large vocabulary for rejected
    branches would be wasted, and custom processors so see kept tokens only, each once and in order.
    """

    def __init__(self, logits: torch.Tensor, context: Context, tree: Any, argmax: list[int] | None = None) -> None:
        self.logits = logits  # (N, V) raw
        self._context, self._tree, self._argmax = context, tree, argmax
        self._rows: dict[int, torch.Tensor] = {}
        self._scores: dict[int, torch.Tensor] = {}
        self.greedy = context.params.greedy

    @property
    def context(self) -> Context:
        """The request."""
        return self._context

    def scores(self, node: int) -> torch.Tensor:
        """(V,) processed logits of the token after `node`, before temperature and truncation. Not to be changed."""
        if node not in self._scores:
            parent, custom = self._tree.parents[node], self._context.params.processors
            assert not custom or parent < 0 or parent in self._scores, f"node {node} was read before its parent {parent}"
            extra = [self._tree.tokens[n] for n in self._tree.path(node)[1:]]
            row = process(self.logits[node], self._context, extra)
            check_finite(row.max())
            self._scores[node] = row
        return self._scores[node]

    def row(self, node: int) -> torch.Tensor:
        """(V,) probabilities of the token after `node`; one-hot when greedy."""
        if node not in self._rows:
            if self.greedy:
                best = self._argmax[node] if self._argmax else int(self.scores(node).argmax())
                probs = torch.zeros_like(self.logits[node], dtype=torch.float32)
                probs[best] = 1
            else:
                probs = torch.softmax(truncate(self.scores(node), self._context.params), -1)
            self._rows[node] = probs
        return self._rows[node]

    def draw(self, node: int, rng: Rng) -> int:
        """A token from the law after `node`; the likeliest one when greedy."""
        if self._argmax:
            return self._argmax[node]
        row = self.row(node)
        return int(row.argmax()) if self.greedy else rng.pick(row)


def target_probs(logits: torch.Tensor, sizes: Sequence[int], contexts: Sequence[Context], trees: Sequence[Any]) -> list[TargetProbs]:
    """Laws for a packed batch. All plain greedy rows share one argmax and one transfer to the host.

    Args: logits (sum of N, V), `sizes` the N of each sequence. Raises NumericalError if a row that is read is not a number.
    """
    argmax: list[int] | None = None
    if any(c.params.greedy and c.params.raw for c in contexts):
        values, indices = logits.max(-1)
        check_finite(values)
        argmax = indices.tolist()
    laws, start = [], 0
    for size, context, tree in zip(sizes, contexts, trees, strict=True):
        own = argmax[start : start + size] if argmax and context.params.greedy and context.params.raw else None
        laws.append(TargetProbs(logits[start : start + size], context, tree, own))
        start += size
    return laws


def check_finite(largest: torch.Tensor) -> None:
    """Raise NumericalError unless the largest logits of the rows are finite numbers."""
    if not bool(torch.isfinite(largest).all()):
        raise NumericalError(
            "the target returned logits that are not numbers, or every token is banned; "
            "try --dtype float32, and check bad words, bias and processors"
        )


def residual(target: torch.Tensor, draft: torch.Tensor) -> torch.Tensor:
    """(V,) the law after a rejected draw: max(p - q, 0), normalised (Leviathan et al. 2023, eq. 3). Falls back to p where p == q."""
    left = (target - draft).clamp_(min=0)
    total = left.sum()
    return left / total if total > 0 else target
