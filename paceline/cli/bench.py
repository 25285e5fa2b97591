"""`paceline bench`: methods and peers side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import InvalidRequest
from ..heads.exit_settings import parsed as exit_settings_of
from ..lossy import parsed
from . import common, options
from .benching import asked_for, keeping, measured, read_again
from .console import publish, report_file

DraftWeights = Annotated[
    str, typer.Option(help="auto, plain, packed, int4 or int8: how our draft model holds its weights. Peers draft with plain ones.")
]
Methods = Annotated[str, typer.Option(help="Comma list of methods; `paceline methods` lists them.")]
Peers = Annotated[
    str,
    typer.Option(
        help="Comma list of transformers, llama-cpp, flashspec, economize, each also as NAME-lookup; transformers-assisted; and "
        "transformers-early-exit or economize-early-exit, with :LAYERS if you like. Empty for none. docs/bench.md says how to install them."
    ),
]
PeerTimeout = Annotated[
    float, typer.Option(help="Seconds that a peer may take to load, and for each decode; then it is stopped and skipped.")
]
Prompts = Annotated[Path | None, typer.Option(help="JSONL file with id, task and turns on each line. The default is a small built-in set.")]
OnBadLine = Annotated[str, typer.Option(help="stop, or skip (and say so), at a line of --prompts that is no prompt.")]
Limit = Annotated[int | None, typer.Option(help="Prompts per task; sub-tasks count as their task.")]
Turns = Annotated[int, typer.Option(help="Turns of each prompt that has so many; a later one follows the target's own greedy answers.")]
Budgets = Annotated[
    str | None,
    typer.Option("--budgets", "--budget", help="Nodes of the draft tree, the root included; a comma list runs each method with each."),
]
Temperatures = Annotated[str, typer.Option("--temperatures", "--temperature", help="0 is greedy decoding; a comma list runs all at each.")]
BatchSizes = Annotated[
    str, typer.Option("--batch-sizes", "--batch-size", help="Prompts decoded at once; a comma list runs all at each, as 1,4.")
]
ByTask = Annotated[bool, typer.Option("--batch-by-task", help="Batches of one task each, so that there are figures by task.")]
Lockstep = Annotated[
    bool, typer.Option("--lockstep", help="Methods take turns at every round, not at every prompt: for machines whose speed drifts.")
]
Repeat = Annotated[int, typer.Option(help="How often to decode everything.")]
Folder = Annotated[
    Path | None, typer.Option(help="Keep everything in this folder, with a page and a command that runs it again. One cut short goes on.")
]
From = Annotated[Path | None, typer.Option("--from", help="Run what a bundle holds once more, and compare the texts with its own.")]
Json = Annotated[
    str | None,
    typer.Option(
        "--json",
        help="- for one last line of JSON on stdout (the table goes to stderr), or a file, with which a bench that was cut short goes on.",
    ),
]
_AS_TYPED = (
    "model", "draft_model", "draft_weights", "limit", "max_new_tokens", "num_speculative_tokens", "dtype", "seed", "repeat", "shape",
    "head", "rule_mode", "memory", "thresholds", "exits", "profile", "batch_by_task", "lockstep",
)  # fmt: skip
_BESIDE_FROM = {"from_", "json", "bundle", "record", "peer_timeout"}  # all else is in the bundle


def main(
    context: typer.Context,
    model: options.Model = common.EMBEDDED,
    draft_model: options.DraftModel = None,
    draft_weights: DraftWeights = "auto",
    methods: Methods = "none,lookup",
    peers: Peers = "transformers",
    peer_timeout: PeerTimeout = 600.0,
    prompts: Prompts = None,
    suite: options.Suite = None,
    on_bad_line: OnBadLine = "stop",
    limit: Limit = None,
    turns: Turns = 1,
    max_new_tokens: options.MaxNewTokens = 128,
    budgets: Budgets = None,
    num_speculative_tokens: options.NumSpeculativeTokens = None,
    dtype: options.Dtype = "auto",
    batch_sizes: BatchSizes = "1",
    batch_by_task: ByTask = False,
    lockstep: Lockstep = False,
    temperatures: Temperatures = "0",
    seed: options.Seed = None,
    repeat: Repeat = 1,
    shape: options.Shape = None,
    head: options.Head = None,
    rule_mode: options.RuleMode = None,
    memory: options.Memory = None,
    thresholds: options.Thresholds = None,
    rule_settings: options.RuleSettings = None,
    exits: options.Exits = None,
    exit_settings: options.ExitSettings = None,
    profile: options.Profile = None,
    record: options.Record = None,
    bundle: Folder = None,
    from_: From = None,
    json: Json = None,
) -> None:
    """Measure methods against plain decoding and other libraries, interleaved per prompt.

    Methods run with every budget, temperature and batch size, each a row of its own. Speed is tokens over the wall time of a whole decode.
    """
    from ..bench.table import show

    if peer_timeout <= 0:
        raise InvalidRequest(f"peer_timeout is {peer_timeout:g}; it must be more than 0 seconds")
    file = report_file(json)
    if from_ is not None:
        _check_beside_from(context)
        asked = read_again(from_)
    else:
        settings = {name: context.params[name] for name in _AS_TYPED} | {
            "methods": _names(methods),
            "peers": _names(peers),
            "rule_settings": parsed(rule_settings or []),
            "exit_settings": exit_settings_of(exit_settings or []),
        }
        grid = (
            _numbers("budgets", budgets or "", int),
            _numbers("temperatures", temperatures, float),
            _numbers("batch_sizes", batch_sizes, int),
        )
        asked = asked_for(settings, grid, suite, prompts, turns=turns, on_bad_line=on_bad_line)
    if record is not None:
        asked = keeping(asked, record)
    made = measured(asked, file=file, bundle=bundle, peer_seconds=peer_timeout)
    publish(made, show, file or bundle, to_stdout=json == "-")


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _numbers(name: str, text: str, kind: type) -> tuple[Any, ...]:
    """A comma list of numbers. Raises InvalidRequest naming what is none."""
    found = []
    for item in _names(text):
        try:
            found.append(kind(item))
        except ValueError:
            raise InvalidRequest(f"{name} has {item!r}, which is no {'whole ' if kind is int else ''}number; write it as 1,4") from None
    return tuple(found)


def _check_beside_from(context: typer.Context) -> None:
    """Raise InvalidRequest for an option that would have no effect."""
    given = [n for n in context.params if n not in _BESIDE_FROM and str(context.get_parameter_source(n)).endswith("COMMANDLINE")]
    if given:
        raise InvalidRequest(
            f"--{given[0].replace('_', '-')} has no effect with --from, which takes all settings from a bundle; leave it out"
        )
