"""`paceline export`: write a head in a public layout, for other servers."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ..errors import InvalidRequest
from .console import Progress, quiet_transformers, stderr


class Layout(StrEnum):
    """What the head is written as."""

    dflash = "dflash"
    speculators = "speculators"


Head = Annotated[Path, typer.Argument(help="Folder of the head.", show_default=False)]
To = Annotated[Layout, typer.Option("--to", help="dflash (flat; vLLM, SGLang, SpecForge) or speculators.")]
Out = Annotated[Path, typer.Option(help="Folder to write; it must not exist, or be empty.")]
Model = Annotated[str | None, typer.Option(help="The head's target, for a reduced vocabulary or a trained mask: their rows go along.")]
MaskTokenId = Annotated[int | None, typer.Option(help="Id of a token that never occurs in text, whose row takes a trained mask.")]
WithoutMarkov = Annotated[bool, typer.Option("--without-markov", help="Leave the Markov term out, which no public layout holds.")]
WithoutLastRow = Annotated[
    bool, typer.Option("--without-last-row", help="Leave out that slots start with the last context row, which no public layout holds.")
]


def main(
    head: Head,
    to: To,
    out: Out,
    model: Model = None,
    mask_token_id: MaskTokenId = None,
    without_markov: WithoutMarkov = False,
    without_last_row: WithoutLastRow = False,
) -> None:
    """Write a head as other servers read it."""
    from ..heads import formats
    from ..heads.export import export, leave_out

    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InvalidRequest(f"--out {out} is there already; name a new folder, or empty it")
    without = [option for option, given in (("--without-markov", without_markov), ("--without-last-row", without_last_row)) if given]
    stored, left_out = leave_out(formats.read(head), to.value, without)
    target = None
    if model is not None:
        from ..targets.load import load

        quiet_transformers()
        with Progress() as progress:
            target = load(model, dtype="float32", weights="plain", progress=progress)  # rounds nothing; rows go out in the head's dtype
    notes = export(stored, out, to.value, target=target, mask_token_id=mask_token_id)
    for note in [f"written to {out} ({to.value})", *left_out, *notes]:
        stderr().print(note)
