"""A bench as a folder: what was asked for, the prompts, every row, the report, and a command that runs it again.

| file | |
| --- | --- |
| settings.json | what was asked for; `paceline bench --from FOLDER` takes it |
| prompts.jsonl | the prompts that were decoded, answers before a later turn included |
| rows.jsonl | every decode as it came, from which a bench that was cut short goes on |
| bench.json | the report: settings, versions, hardware, seeds, all rows |
| report.html, figures/ | the same for people |
| README.md | the commands |
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..errors import InvalidRequest, PacelineError
from . import environment, suites
from .grid import Grid
from .journal import Row
from .settings import Settings
from .suites import Prompt

FORMAT = 1
_README = """# A bench of Paceline

`{command}`

`report.html` shows it; `bench.json` holds settings, versions, hardware, seeds and every row. To run it again in a new folder, from a place
where the same relative paths lead to the models:

    paceline bench --from {folder} --bundle again

That decodes the prompts in `prompts.jsonl` with the settings in `settings.json`, and says how many texts came out the same.
"""


@dataclass(frozen=True)
class Bundle:
    """The folder. `made` writes what is known beforehand, `finish` the rest."""

    folder: Path

    @property
    def rows(self) -> Path:
        return self.folder / "rows.jsonl"

    @property
    def report(self) -> Path:
        return self.folder / "bench.json"

    def check(self) -> None:
        """Raise where no bundle can be, before anything is decoded."""
        if self.folder.exists() and not self.folder.is_dir():
            raise InvalidRequest(f"--bundle {self.folder} is a file; name a folder")
        if find_spec("matplotlib") is None:
            raise PacelineError("a bundle has figures, which need matplotlib; pip install 'paceline[bench]'")

    def begin(self, grid: Grid, prompts: Sequence[Prompt]) -> None:
        """Write what was asked for. Raises PacelineError if that is not possible."""
        told = dataclasses.asdict(grid)
        told["settings"] = {k: environment.scrub(v) if isinstance(v, str) else v for k, v in told["settings"].items()}
        readme = _README.format(command=environment.command_line(), folder=self.folder.name)
        texts = {
            "settings.json": json.dumps({"format": FORMAT, **told}, indent=1) + "\n",
            "prompts.jsonl": "".join(suites.as_line(p) + "\n" for p in prompts),
            "README.md": readme,
        }
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for name, text in texts.items():
                (self.folder / name).write_text(text, "utf-8")
        except OSError as error:
            raise PacelineError(f"cannot write to {self.folder} ({error.strerror}); make room, or give --bundle another folder") from None

    def finish(self, report: Mapping[str, Any]) -> None:
        """The report, as a page and as figures; `bench.json` is written before."""
        from ..report import figures, page

        made = figures.figures(report)
        page.write(report, made, self.folder / "report.html")
        figures.save(made, self.folder / "figures", ("svg",))


def read(place: Path) -> tuple[Grid, list[Prompt]]:
    """What a bundle asked for, from its folder or its settings file. Raises InvalidRequest if it is none."""
    file = place / "settings.json" if place.is_dir() else place
    try:
        told = json.loads(file.read_text("utf-8"))
        if told.pop("format") != FORMAT:
            raise InvalidRequest(f"{file} is of another format than {FORMAT}; run its bench again with this version")
        values = told.pop("settings")
        chosen = {k: _value(v) for k, v in values.items()}
        grid = Grid(Settings(**chosen), **{name: tuple(found) for name, found in told.items()})
    except OSError as error:
        raise InvalidRequest(f"{file} cannot be read ({error.strerror}); name a folder that `paceline bench --bundle` wrote") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidRequest(f"{file} is no settings file of a bundle ({error}); name a folder that `--bundle` wrote") from None
    return grid, suites.read(file.with_name("prompts.jsonl"))


def _value(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    return os.path.expanduser(value) if isinstance(value, str) and value.startswith("~/") else value


def same_texts(place: Path, rows: Sequence[Row]) -> dict[str, Any]:
    """How many decodes of a bundle came out the same. Those that one of the two lacks do not count."""
    before = place if place.is_dir() else place.parent
    theirs = _texts([json.loads(line) for line in (before / "rows.jsonl").read_text("utf-8").splitlines()[1:]])
    ours = _texts(rows)
    shared = sorted(ours.keys() & theirs.keys())
    other = [
        {"run": run, "prompt": prompt, "repeat": repeat}
        for run, prompt, repeat in shared
        if ours[run, prompt, repeat] != theirs[run, prompt, repeat]
    ]
    return {"bundle": environment.scrub(str(before)), "identical": len(shared) - len(other), "of": len(shared), "other": other}


def _texts(rows: Sequence[Row]) -> dict[tuple[str, str, int], list[int]]:
    return {(row["run"], o["prompt"], row["repeat"]): o["tokens"] for row in rows for o in row["outputs"]}
