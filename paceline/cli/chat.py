"""`paceline chat`: a conversation, turn by turn. What the model has read of it stays in its cache."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import PacelineError
from . import common, options
from .console import Progress, fail, stderr, write

if TYPE_CHECKING:
    from ..sequence import Sequence as Request

Stats = Annotated[bool, typer.Option("--stats", help="Print statistics after each answer.")]


@dataclass
class Conversation:
    """The messages so far, and the sequence whose cache holds most of them."""

    session: common.Session
    system: str | None
    messages: list[dict[str, str]] = field(default_factory=list)
    seq: Request | None = None

    def __post_init__(self) -> None:
        self.messages = common.messages(self.system)

    def ask(self, line: str) -> tuple[Request, int]:
        """The sequence that will hold the answer, and how many tokens of its prompt are cached already."""
        from .. import api, engine
        from ..text import TextStream

        session = self.session
        messages = [*self.messages, *common.messages(None, line)]
        tokens = api.encode(session.target, messages)
        if self.seq is None:
            self.seq = api.request(session.target, tokens, session.params)
        else:
            engine.next_turn(session.target, self.seq, tokens, session.params, TextStream(session.target.tokenizer, session.params.stop))
        self.messages = messages
        return self.seq, 0 if self.seq.slot is None else session.target.cache.length(self.seq.slot)

    def reset(self) -> None:
        """Forget everything but the system message."""
        from .. import engine

        if self.seq is not None:
            engine.release(self.session.target, self.seq)
        self.seq, self.messages = None, common.messages(self.system)


def main(
    context: typer.Context,
    model: options.Model = common.EMBEDDED,
    method: options.Method = "auto",
    draft_model: options.DraftModel = None,
    num_speculative_tokens: options.NumSpeculativeTokens = None,
    budget: options.Budget = None,
    shape: options.Shape = None,
    head: options.Head = None,
    rule: options.Rule = None,
    rule_mode: options.RuleMode = None,
    memory: options.Memory = None,
    thresholds: options.Thresholds = None,
    rule_settings: options.RuleSettings = None,
    profile: options.Profile = None,
    exits: options.Exits = None,
    exit_settings: options.ExitSettings = None,
    max_new_tokens: options.MaxNewTokens = 512,
    temperature: options.Temperature = 0.0,
    top_p: options.TopP = None,
    top_k: options.TopK = None,
    min_p: options.MinP = None,
    repetition_penalty: options.RepetitionPenalty = 1.0,
    seed: options.Seed = None,
    stop: options.Stop = None,
    system: options.System = None,
    stream: options.Stream = None,
    stats: Stats = False,
    as_json: options.Json = False,
    dtype: options.Dtype = "auto",
    device: options.Device = "auto",
    revision: options.Revision = None,
    weights: options.Weights = "auto",
    draft_weights: options.DraftWeights = None,
) -> None:
    """Talk with a model: one line is one turn. /reset starts over; /exit or Ctrl-D ends; Ctrl-C stops an answer."""
    models, plan = common.chosen(context.params)
    common.check(models, plan, stream=stream, as_json=as_json)
    with Progress() as progress:
        progress("starting")
        params = common.sampling_params(context.params)
        session = common.open_session(models, plan, params, progress)
    _talk(Conversation(session, system), live=common.streams(stream, as_json), stats=stats, as_json=as_json)


def _talk(conversation: Conversation, *, live: bool, stats: bool, as_json: bool) -> None:
    """Answer each line of stdin."""
    at_terminal = sys.stdin.isatty()
    if at_terminal:
        stderr().print("/reset starts over, /exit or Ctrl-D ends, Ctrl-C stops an answer")
    for line in _lines(at_terminal):
        if line == "/exit":
            return
        if line == "/reset":
            conversation.reset()
        elif line:
            try:
                _turn(conversation, line, live=live, stats=stats, as_json=as_json)
            except PacelineError as error:
                if not at_terminal:
                    raise
                fail(f"{error} (/reset starts over)")


def _lines(at_terminal: bool) -> Iterator[str]:
    """Lines of stdin until its end, without the space around them."""
    prompt = "> " if at_terminal and sys.stdout.isatty() else ""
    if prompt:
        with suppress(ImportError):  # not on Windows
            import_module("readline")  # line editing and history
    while True:
        try:
            yield common.as_text(input(prompt).strip())
        except EOFError:
            return


def _turn(conversation: Conversation, line: str, *, live: bool, stats: bool, as_json: bool) -> None:
    from .report import print_rows, rows
    from .running import decode, record, shower

    session = conversation.session
    seq, reused = conversation.ask(line)
    with Progress() as progress, interruptible() as stopped:
        run = decode(session, seq, shower(progress, live), stopped)
    text = run.completion.text
    conversation.messages.append({"role": "assistant", "content": text})
    if as_json:
        write(json.dumps(record(session, run) | {"reused_prompt_tokens": reused}) + "\n")
    else:
        write("\n" if live else text + "\n")
    if stats:
        print_rows([*rows(session, run), ("prompt", f"{run.completion.prompt_tokens} tokens, {reused} of them re-used from the cache")])


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Let Ctrl-C ask for an end after the round in progress, when everything is whole. A second one interrupts at once."""
    asked = False

    def ask(*_: object) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    previous = signal.signal(signal.SIGINT, ask)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, previous)
