"""Training sequences: tokens, and from where on they are the target's (or a corpus') answer, which alone is supervised."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from .. import api
from ..errors import InvalidRequest
from ..sequence import common_prefix
from ..targets.hf import HFTarget
from .answers import Answer
from .prompts import Row

_CORPUS_FIELDS = ("output", "solution", "code", "canonical_solution", "answer")


@dataclass(frozen=True)
class Example:
    """`tokens[prompt_length:]` are supervised."""

    key: str
    task: str
    tokens: tuple[int, ...]
    prompt_length: int
    temperature: float = 0.0

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def trainable(self) -> bool:
        """Whether there is an anchor: two supervised tokens in a row."""
        return len(self.tokens) - self.prompt_length >= 2


def from_answers(answers: Iterable[Answer], max_length: int) -> list[Example]:
    """One sequence per answer, cut to `max_length` tokens."""
    return [Example(a.key, a.task, (*a.prompt_ids, *a.ids)[:max_length], len(a.prompt_ids), a.temperature) for a in answers]


def from_corpus(target: HFTarget, rows: Iterable[Row], max_length: int) -> list[Example]:
    """One sequence per row that has a reference text, in the target's chat template."""
    ends = sorted(target.eos_token_ids)[:1]
    made = []
    for row in rows:
        text = next((t for f in _CORPUS_FIELDS if isinstance(t := row.reference.get(f), str) and t.strip()), None)
        if text is not None:
            prompt = api.encode(target, row.turns[0])
            answer = target.tokenizer(text, add_special_tokens=False)["input_ids"]
            made.append(Example(row.id, row.task, (*prompt, *answer, *ends)[:max_length], len(prompt)))
    return made


def prompts_as_texts(examples: Sequence[Example]) -> list[Example]:
    """The prompts as sequences of their own, supervised behind what all of them begin with. Their features are those of the whole."""
    begins = _common([e.tokens[: e.prompt_length] for e in examples])
    made = (Example(e.key, e.task, e.tokens[: e.prompt_length], max(1, begins)) for e in examples)
    return [e for e in made if e.trainable]


def _common(texts: Sequence[Sequence[int]]) -> int:
    """How many tokens all of them begin with."""
    if len(texts) < 2:
        return 0
    first, last = min(map(tuple, texts)), max(map(tuple, texts))
    return common_prefix(first, last)


def trainable(examples: Sequence[Example], target: HFTarget) -> list[Example]:
    """Those with an anchor. Raises InvalidRequest if there is none, and shows the first sequence as it was rendered."""
    kept = [e for e in examples if e.trainable]
    if kept:
        return kept
    if not examples:
        raise InvalidRequest("there is no training sequence; give prompts, or with answers.source corpus prompts with references")
    first = examples[0]
    shown = target.tokenizer.decode(list(first.tokens)) if target.tokenizer is not None else str(list(first.tokens))
    raise InvalidRequest(
        f"nothing to learn: none of {len(examples)} training sequences has two answer tokens in a row. The first has {len(first)} tokens, "
        f"of which the answer begins at {first.prompt_length}: {shown!r}. Raise answers.max_new_tokens or optimizer.max_length, or correct "
        "the chat template"
    )


def draft_vocabulary(examples: Sequence[Example], size: int | None, target: HFTarget) -> torch.Tensor | None:
    """(Vd,) ascending ids: the most frequent answer tokens, end-of-sequence always; then the most frequent ones of prompts, and the lowest
    ids. None for all."""
    if size is None or size >= target.vocab_size:
        return None
    said = Counter(t for e in examples for t in e.tokens[e.prompt_length :])
    asked = Counter(t for e in examples for t in e.tokens[: e.prompt_length])
    ordered = [*sorted(target.eos_token_ids), *(t for counts in (said, asked) for t, _ in counts.most_common())]
    chosen = list(dict.fromkeys((*ordered, *range(target.vocab_size))))[:size]
    return torch.tensor(sorted(chosen))


def counts(examples: Sequence[Example], vocab_size: int) -> torch.Tensor:
    """(V,) how often each token is in the answers."""
    tokens = [t for e in examples for t in e.tokens[e.prompt_length :]]
    return torch.bincount(torch.tensor(tokens), minlength=vocab_size)


def coverage(examples: Sequence[Example], ids: torch.Tensor | None) -> float:
    """The share of answer tokens that are in the draft vocabulary."""
    if ids is None:
        return 1.0
    inside = set(ids.tolist())
    tokens = [t for e in examples for t in e.tokens[e.prompt_length :]]
    return sum(t in inside for t in tokens) / max(1, len(tokens))
