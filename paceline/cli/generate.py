"""`paceline generate`: one prompt, one answer."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import InvalidRequest
from ..methods import parse
from . import common, options
from .console import Progress, write

if TYPE_CHECKING:
    from .running import Reader, Run

Prompt = Annotated[str, typer.Argument(help="The prompt; - reads it from stdin.", show_default=False)]
Chat = Annotated[bool, typer.Option("--chat/--raw", help="Put the prompt into the model's chat template, or take it as it is.")]
Stats = Annotated[bool, typer.Option("--stats", help="Print statistics, and the speed-up over plain decoding of the same prompt.")]


def main(
    context: typer.Context,
    prompt: Prompt,
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
    max_new_tokens: options.MaxNewTokens = 128,
    temperature: options.Temperature = 0.0,
    top_p: options.TopP = None,
    top_k: options.TopK = None,
    min_p: options.MinP = None,
    repetition_penalty: options.RepetitionPenalty = 1.0,
    seed: options.Seed = None,
    stop: options.Stop = None,
    chat: Chat = True,
    system: options.System = None,
    stream: options.Stream = None,
    stats: Stats = False,
    as_json: options.Json = False,
    record: options.Record = None,
    dtype: options.Dtype = "auto",
    device: options.Device = "auto",
    revision: options.Revision = None,
    weights: options.Weights = "auto",
    draft_weights: options.DraftWeights = None,
) -> None:
    """Answer one prompt."""
    models, plan = common.chosen(context.params)
    common.check(models, plan, stream=stream, as_json=as_json)
    if system is not None and not chat:
        raise InvalidRequest("--system has no effect with --raw; leave one of them out")
    text = common.read_prompt(prompt)
    with Progress() as progress:
        progress("starting")
        params = common.sampling_params(context.params)
        session = common.open_session(models, plan, params, progress)
        shown = {"live": common.streams(stream, as_json), "stats": stats, "as_json": as_json}
        _answer(session, _encode(session, text, system, chat), progress, record=record, **shown)


def _encode(session: common.Session, text: str, system: str | None, chat: bool) -> list[int]:
    from .. import api

    return api.encode(session.target, common.messages(system, text) if chat else text, chat)


def _answer(
    session: common.Session, tokens: list[int], progress: Progress, *, record: Path | None, live: bool, stats: bool, as_json: bool
) -> None:
    from .running import decode_once, shower, warm_up
    from .running import record as as_record

    if stats or as_json:
        progress("warming up")
        warm_up(session, tokens)
    asked, reader = _recorded(session, record)
    run = decode_once(asked, tokens, shower(progress, live), reader=reader)
    progress.stop()
    if as_json:
        write(json.dumps(as_record(session, run)) + "\n")
    else:
        write("\n" if live else run.completion.text + "\n")
    if stats:
        _print_stats(session, tokens, run, progress)


def _recorded(session: common.Session, folder: Path | None) -> tuple[common.Session, Reader]:
    """The session with what a record needs, and what reads its rounds."""
    if folder is None:
        return session, lambda round_: None
    from ..record.recorder import TOP, recorder_for

    recorder = recorder_for(folder, session.target, session.drafter, session.rule)
    params = dataclasses.replace(session.params, logprobs=session.params.logprobs or TOP)
    return dataclasses.replace(session, params=params), lambda round_: recorder.add(round_, "generate")


def _print_stats(session: common.Session, tokens: list[int], run: Run, progress: Progress) -> None:
    """The table, after decoding the same prompt once more without a draft."""
    from .report import compared, print_rows, rows
    from .running import decode_once, plain, shower

    found = rows(session, run)
    if parse(session.method)[0] != ["none"]:
        baseline = decode_once(plain(session), tokens, shower(progress, False, "decoding once more without a draft"))
        found += compared(session, run, baseline)
    progress.stop()
    print_rows(found)
