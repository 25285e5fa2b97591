"""A bench as a folder: complete, resumed, run again with the same texts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.bench import bundle
from paceline.bench.grid import Grid
from paceline.bench.settings import Settings
from paceline.bench.suites import Prompt
from paceline.errors import InvalidRequest

from .conftest import Bench
from .interrupt import interrupt_after

FILES = {"README.md", "bench.json", "figures", "prompts.jsonl", "report.html", "rows.jsonl", "settings.json"}
COMMAND = ("--methods", "none,lookup", "--budget", "3", "--temperatures", "0,1", "--seed", "5", "--peers", "", "--limit", "2")


def test_a_bundle_goes_on_after_an_interruption_and_gives_the_same_texts_when_run_again(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, again = tmp_path / "first", tmp_path / "again"
    undo = interrupt_after(6, monkeypatch)  # four warm-ups and two rows
    assert bench(*COMMAND, "--turns", "2", "--bundle", str(first))[0] == 130
    undo()
    kept = (first / "rows.jsonl").read_text()
    code, _, err = bench(*COMMAND, "--turns", "2", "--bundle", str(first))
    assert code == 0, err
    assert "going on after 2 decodes" in err
    assert {f.name for f in first.iterdir()} == FILES
    assert (first / "rows.jsonl").read_text().startswith(kept)
    made = json.loads((first / "bench.json").read_text())
    assert made["prompts"] == ["rain", "rain#2", "lake", "bird"]
    assert len(made["rows"]) == 4 * 4
    from paceline.cli import main

    with pytest.raises(SystemExit) as ended:
        main(["bench", "--from", str(first), "--bundle", str(again)])
    assert not ended.value.code, capsys.readouterr().err
    found = json.loads((again / "bench.json").read_text())
    assert (found["again"]["identical"], found["again"]["of"], found["again"]["other"]) == (16, 16, [])
    texts = [{(r["run"], o["prompt"]): o["tokens"] for r in x["rows"] for o in r["outputs"]} for x in (made, found)]
    assert texts[0] == texts[1]
    assert "16 of 16 texts are those of" in found["remarks"][-1]


def test_what_is_asked_for_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    grid = Grid(Settings("/home/someone/m", methods=("none", "lookup"), temperature=1.0, seed=3), (4, 8), (0.0, 1.0), (1, 2))
    prompts = [Prompt("a", "t", ("x", "y", "z"), ("1",)), Prompt("b", "t/u", ("ü",))]
    bundle.Bundle(tmp_path).begin(grid, prompts)
    assert "someone" not in (tmp_path / "settings.json").read_text()
    assert bundle.read(tmp_path) == bundle.read(tmp_path / "settings.json") == (grid, prompts)


def test_texts_that_differ_are_named(tmp_path: Path) -> None:
    def row(run: str, prompt: str, tokens: list[int]) -> dict[str, object]:
        return {"run": run, "repeat": 0, "outputs": [{"prompt": prompt, "tokens": tokens}]}

    before = [row("a", "x", [1, 2]), row("a", "y", [3]), row("gone", "x", [4])]
    (tmp_path / "rows.jsonl").write_text("{}\n" + "".join(json.dumps(r) + "\n" for r in before))
    found = bundle.same_texts(tmp_path, [row("a", "x", [1, 2]), row("a", "y", [9]), row("new", "x", [4])])
    assert (found["identical"], found["of"], found["other"]) == (1, 2, [{"run": "a", "prompt": "y", "repeat": 0}])


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (None, "cannot be read"),
        ("{", "no settings file of a bundle"),
        ("[]", "no settings file of a bundle"),
        ('{"format": 1}', "no settings file of a bundle"),
        ('{"format": 9, "settings": {}}', "another format than 1"),
        ('{"format": 1, "settings": {"colour": "red"}}', "colour"),
        ('{"format": 1, "settings": {"methods": ["magic"]}}', "unknown method 'magic'"),
    ],
)
def test_what_is_no_bundle_is_refused(tmp_path: Path, text: str | None, complaint: str) -> None:
    if text is not None:
        (tmp_path / "settings.json").write_text(text)
    with pytest.raises(InvalidRequest, match=complaint):
        bundle.read(tmp_path)


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (("--from", "/nowhere"), "--model has no effect with --from"),
        (("--budgets", "4,x"), "budgets has 'x', which is no whole number"),
        (("--temperatures", "0,warm"), "temperatures has 'warm'"),
        (("--bundle", __file__), "is a file; name a folder"),
        (("--peer-timeout", "0"), "peer_timeout is 0"),
        (("--turns", "0"), "turns is 0"),
        (("--on-bad-line", "maybe"), "on_bad_line is 'maybe'"),
    ],
)
def test_options_that_cannot_be_are_refused_in_one_line(bench: Bench, args: tuple[str, ...], complaint: str) -> None:
    code, out, err = bench(*args)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert complaint in err
