"""`paceline report`: a bench as one page, and as figures for papers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import InvalidRequest
from .console import stderr

Bench = Annotated[Path, typer.Argument(help="What `paceline bench --json FILE` wrote.", show_default=False)]
Out = Annotated[Path, typer.Option(help="The page to write, one file that needs nothing else.")]
Profile = Annotated[Path | None, typer.Option(help="What `paceline tune` wrote: its cost curves become a figure.")]
Images = Annotated[Path | None, typer.Option(help="A folder for the figures, as PNG, SVG and PDF.")]


def main(bench: Bench, out: Out = Path("report.html"), profile: Profile = None, images: Images = None) -> None:
    """Turn a bench into a page: speed-ups, acceptance, time shares, costs, and where a method lost. Nothing is measured."""
    from ..report import figures, page, read

    if out.is_dir() or not out.absolute().parent.is_dir():
        raise InvalidRequest(f"--out {out} is no file in a folder that exists; make the folder first, or give another name")
    found = read.bench(bench)
    made = figures.figures(found, None if profile is None else read.curves(profile))
    page.write(found, made, out)
    stderr().print(f"written to {out}", soft_wrap=True)
    if images is not None:
        figures.save(made, images)
        stderr().print(f"{len(made)} figures in {images}", soft_wrap=True)
