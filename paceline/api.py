"""Text in, text out: the loop with a tokenizer around it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import engine
from .engine import Round
from .errors import InvalidRequest
from .methods import Options, build
from .rules import ledger
from .sampling import SamplingParams
from .sequence import Logprob
from .sequence import Sequence as Request
from .stats import Stats
from .targets.hf import HFTarget
from .targets.load import check_same_tokenizer
from .text import TextStream

Message = dict[str, str]


@dataclass
class Completion:
    """The answer to one prompt. `tokens` includes an end-of-sequence token, `text` ends before it and before a stop string."""

    text: str
    tokens: list[int]
    finish_reason: str
    prompt_tokens: int
    stats: Stats
    logprobs: list[Logprob] = field(default_factory=list)
    rules: dict[str, Any] = field(default_factory=dict)  # by lossy rule, what it did: see `rules.ledger.Ledger.summary`

    @property
    def altered(self) -> int:
        """Tokens that a lossy rule rescued or vetoed."""
        return sum(found["altered"] for found in self.rules.values())


def encode(target: HFTarget, prompt: str | Sequence[Message] | Sequence[int], chat: bool = True) -> list[int]:
    """Token ids of a prompt: a string (a user's message if `chat`, else raw text), a list of chat messages, or ids as they are."""
    if not isinstance(prompt, str):
        items = list(prompt)
        if all(isinstance(i, int) for i in items):
            return items  # type: ignore[return-value]
        return _template(target, items)
    if not prompt.strip():
        raise InvalidRequest("the prompt is empty; give some text")
    if not chat:
        return list(_tokenizer(target)(prompt)["input_ids"])
    return _template(target, [{"role": "user", "content": prompt}])


def _template(target: HFTarget, messages: list[Any]) -> list[int]:
    tokenizer = _tokenizer(target)
    if not tokenizer.chat_template:
        raise InvalidRequest(f"the tokenizer of {target.name} has no chat template; send raw text instead (--raw, chat=False)")
    from jinja2 import TemplateError

    try:
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    except TemplateError as error:
        raise InvalidRequest(
            f"the chat template of {target.name} refuses this ({error}); leave out the system message, or send raw text (--raw)"
        ) from None
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def _tokenizer(target: HFTarget) -> Any:
    if target.tokenizer is None:
        raise InvalidRequest("this target has no tokenizer; load it with one, or send token ids")
    return target.tokenizer


def request(
    target: HFTarget, prompt: str | Sequence[Message] | Sequence[int], params: SamplingParams | None = None, chat: bool = True
) -> Request:
    """A sequence for the loop, with its text watched."""
    tokens, params = encode(target, prompt, chat), params or SamplingParams()
    text = None if target.tokenizer is None else TextStream(target.tokenizer, params.stop)
    return Request(tokens, params, eos_token_ids=target.eos_token_ids, max_length=target.max_length, text=text)


def generate(
    target: HFTarget,
    prompts: Sequence[str | Sequence[Message] | Sequence[int]],
    params: SamplingParams | None = None,
    *,
    method: str = "auto",
    draft_model: HFTarget | None = None,
    num_speculative_tokens: int | None = None,
    budget: int | None = None,
    shape: str | None = None,
    head: str | None = None,
    chat: bool = True,
    batch_size: int | None = None,
    rule_mode: str | None = None,
    memory: Any = None,
    thresholds: Any = None,
    rule_settings: Mapping[str, Any] | None = None,
    profile: str | None = None,
    exits: str | None = None,
    exit_settings: Mapping[str, Any] | None = None,
) -> list[Completion]:
    """Answer all prompts, at most `batch_size` of them at a time (None: all).

    `shape` is that of a draft model's tree: chain, chain:5, 2x3 (width, depth) or sequoia:P1,P2,... (see docs/methods/draft_model.md).
    The four after `batch_size` are for the lossy rules csd and easd: off, shadow or on; the correction memory, a file or an object; the
    thresholds file; and settings such as `{"csd.tau": 0.05}`. `profile` is for method auto, what `paceline tune` wrote; without it the one
    in the cache, if there is one. `exits` and `exit_settings` are for method specbound: a folder of exit heads, or lens; and settings
    such as `{"threshold": 0.8}` (see `heads.exit_settings`).

    Raises InvalidRequest, PromptTooLong, IncompatibleDraft or IncompatibleRule before the first token.
    """
    if isinstance(prompts, str):
        raise InvalidRequest("prompts is a string; give a list of prompts")
    if batch_size is not None and batch_size < 1:
        raise InvalidRequest(f"batch_size is {batch_size}; it must be at least 1")
    lossy = {"rule_mode": rule_mode, "memory": memory, "thresholds": thresholds, "rule_settings": rule_settings}
    others = {"profile": profile, "exits": exits, "exit_settings": exit_settings}
    drafter, rule = method_for(target, method, draft_model, num_speculative_tokens, budget, shape, head, **others, **lossy)
    seqs = [request(target, p, params, chat) for p in prompts]
    stats = {id(s): Stats() for s in seqs}
    for round_ in engine.stream(target, drafter, rule, seqs, batch_size):
        stats[id(round_.sequence)].add(round_)
        if round_.finish_reason:
            ledger.close(round_.sequence)
    return [completion(s, stats[id(s)]) for s in seqs]


def completion(seq: Request, stats: Stats) -> Completion:
    """What a finished sequence amounts to."""
    text = seq.text.finish() if isinstance(seq.text, TextStream) else ""
    return Completion(text, seq.output, seq.finish_reason or "abort", seq.prompt_length, stats, seq.logprobs, ledger.summaries(seq))


def method_for(
    target: HFTarget,
    method: str,
    draft_model: HFTarget | None = None,
    num_speculative_tokens: int | None = None,
    budget: int | None = None,
    shape: str | None = None,
    head: str | None = None,
    **others: Any,
) -> tuple[Any, Any]:
    """Drafter and rule by name, with the draft model's tokenizer checked. `others` are further fields of Options."""
    if draft_model is not None:
        check_same_tokenizer(target, draft_model)
    return build(method, target, Options(num_speculative_tokens, budget, draft_model, shape, head, **others))


def stream(target: HFTarget, seq: Request, drafter: Any, rule: Any) -> Iterator[tuple[str, Round]]:
    """Yield the new text of each round of one sequence, with the round. The slot stays open for a next turn."""
    assert isinstance(seq.text, TextStream), "streaming needs a tokenizer"
    shown = 0
    for round_ in engine.rounds(target, drafter, rule, [seq]):
        text = seq.text.finish() if round_.finish_reason else seq.text.text
        yield text[shown:], round_
        shown = len(text)
