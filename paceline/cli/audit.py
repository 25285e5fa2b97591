"""`paceline audit`: is a rule lossless as it says, and what does it accept?"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import InvalidRequest, PacelineError
from . import common, options
from .console import report_file, tables, write

if TYPE_CHECKING:
    from ..bench.audit import Report

Model = Annotated[str | None, typer.Option(help=f"The target, by default {common.EMBEDDED}; a folder, a .gguf file or a hub id.")]
Rule = Annotated[str | None, typer.Option(help="Short for --method draft_model/RULE; `paceline methods` lists the rules.")]
Method = Annotated[str | None, typer.Option(help="drafter, drafter/rule or drafter+drafter.")]
Temperature = Annotated[float | None, typer.Option(help="0.8 by default; 0 tests greedy equality only.")]
Prompts = Annotated[Path | None, typer.Option(help="JSONL file with id, task and turns on each line. The default is a small built-in set.")]
Limit = Annotated[int | None, typer.Option(help="Prompts per task, 1 by default.")]
MaxNewTokens = Annotated[int | None, typer.Option(help="Tokens per prompt, 64 by default.")]
Dtype = Annotated[str | None, typer.Option(help="auto, float32, bfloat16 or float16; auto is bfloat16 where the hardware has it.")]
Laws = Annotated[Path | None, typer.Option(help="Audit --rule on given laws instead: an .npz file with arrays p and q of shape (rows, V).")]
Width = Annotated[int | None, typer.Option(help="With --laws: children per node.")]
Replays = Annotated[int | None, typer.Option(help="Decisions to replay at captured nodes, 10000 by default.")]
Json = Annotated[
    str | None, typer.Option("--json", help="- for one last line of JSON on stdout (the table goes to stderr), or a file for it.")
]


def main(
    model: Model = None,
    draft_model: options.DraftModel = None,
    rule: Rule = None,
    method: Method = None,
    temperature: Temperature = None,
    top_p: options.TopP = None,
    top_k: options.TopK = None,
    shape: options.Shape = None,
    prompts: Prompts = None,
    limit: Limit = None,
    max_new_tokens: MaxNewTokens = None,
    dtype: Dtype = None,
    draft_weights: options.DraftWeights = None,
    laws: Laws = None,
    width: Width = None,
    replays: Replays = None,
    seed: options.Seed = None,
    json: Json = None,
) -> None:
    """Test a rule's claim to be lossless on real decoding, and say what it accepts and what any lossless rule could.

    Exit code 1 if a rule that claims to be lossless fails.
    """
    if find_spec("scipy") is None:
        raise PacelineError("the audit needs scipy; pip install 'paceline[bench]'")
    from . import auditing

    file = report_file(json)
    decoding = {
        "model": model, "draft_model": draft_model, "method": method, "temperature": temperature, "top_p": top_p, "top_k": top_k,
        "shape": shape, "prompts": prompts, "limit": limit, "max_new_tokens": max_new_tokens, "dtype": dtype,
        "draft_weights": draft_weights,
    }  # fmt: skip
    given, sizes = ({k: v for k, v in o.items() if v is not None} for o in (decoding, {"replays": replays, "seed": seed}))
    if laws is not None:
        made = auditing.on_laws(laws, rule, width, given, sizes)
    elif width is not None:
        raise InvalidRequest("--width has no effect without --laws; leave it out, or say --shape")
    else:
        made = auditing.decoded(rule, given, sizes)
    _publish(made, file, to_stdout=json == "-")
    if made["lossless"] and made["lossless_tests"] == "failed":
        raise typer.Exit(1)


def _publish(made: Report, file: Path | None, to_stdout: bool) -> None:
    from ..bench import report
    from ..bench.audit_table import show

    console = tables(on_stderr=to_stdout, width=160)
    show(made, console)
    if to_stdout:
        write(report.as_json(made) + "\n")
    elif file is not None:
        try:
            file.write_text(report.as_json(made) + "\n", "utf-8")
        except OSError as error:
            raise PacelineError(f"the report cannot be written to {file} ({error.strerror}); make room, or give another name") from None
        console.print(f"written to {file}")
