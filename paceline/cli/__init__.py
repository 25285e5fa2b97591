"""The command line. Each command is a module with a `main`, and imports what is heavy when it runs: `--help` stays quick."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Annotated, Any

import typer

from .. import __version__
from ..errors import PacelineError
from . import (
    audit,
    bench,
    calibrate,
    chat,
    doctor,
    evaluate,
    export,
    generate,
    methods,
    reporting,
    trace,
    train,
    train_exits,
    train_rcsd,
    tune,
)
from .console import fail

app = typer.Typer(
    help="Speculative decoding for Hugging Face models: the same text, sooner.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("generate")(generate.main)
app.command("chat")(chat.main)
app.command("methods")(methods.main)
app.command("bench")(bench.main)
app.command("report")(reporting.main)
app.command("trace")(trace.main)
app.command("tune")(tune.main)
app.command("audit")(audit.main)
app.command("eval")(evaluate.main)
app.command("doctor")(doctor.main)
app.command("export")(export.main)
app.add_typer(train.app, name="train")
train.app.command("rcsd")(train_rcsd.main)
train.app.command("exits")(train_exits.main)
app.add_typer(calibrate.app, name="calibrate")

_UsageError: Any = typer.BadParameter.__mro__[1]  # typer gives it no public name


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"paceline {__version__}")
        raise typer.Exit()


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Print the version and exit.")] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


def main(args: Sequence[str] | None = None) -> None:
    """Run a command and exit: 0 when done, 2 after one line that says what is wrong, 130 after Ctrl-C."""
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "replace"), (sys.stderr, "replace")):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=errors)  # what cannot be decoded is refused with a line; what cannot be shown becomes "?"
    try:
        code = app(args, prog_name="paceline", standalone_mode=False)
    except PacelineError as error:
        code = fail(str(error))
    except _UsageError as error:
        code = fail(f"{error.format_message().rstrip('.')}; see {error.ctx.command_path if error.ctx else 'paceline'} --help")
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    sys.exit(code or 0)
