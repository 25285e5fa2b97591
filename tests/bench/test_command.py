"""`paceline bench` as people call it."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from paceline.bench import environment

from .conftest import Bench
from .interrupt import interrupt_after

FIELDS = {"method", "rule", "lossless", "tokens", "seconds", "target_forwards", "mean_acceptance_length", "time_share"}
FIELDS |= {"speedup_vs_none", "speedup_vs_transformers", "identical", "of"}


def strict(text: str) -> Any:
    def refuse(name: str) -> None:
        raise ValueError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_stdout_ends_in_one_line_of_strict_json_with_everything(bench: Bench) -> None:
    code, out, err = bench("--methods", "none,lookup", "--peers", "transformers,transformers-assisted", "--json", "-")
    assert code == 0, err
    assert out.count("\n") == 1
    found = strict(out)
    assert next(iter(found)) == "runs"
    for key in ("settings", "versions", "commit", "hardware", "command", "prompts", "differences", "rows", "formulas"):
        assert key in found
    assert [r["run"] for r in found["runs"]] == ["none", "lookup", "transformers", "transformers-assisted"]
    for run in found["runs"]:
        assert set(run) >= FIELDS, run["run"]
    none, lookup, peer, skipped = found["runs"]
    assert (none["rule"], peer["rule"], peer["lossless"]) == ("match", None, True)
    assert (lookup["identical"], lookup["of"]) == (3, 3)
    assert sum(lookup["time_share"].values()) == pytest.approx(1)
    assert "needs a draft model" in skipped["skipped"]
    assert found["prompts"] == ["rain", "lake", "bird"]
    assert len(found["rows"]) == 9
    assert found["settings"]["dtype"] == "float32"


def test_the_table_goes_to_stderr_beside_json_on_stdout_and_else_to_stdout(bench: Bench, tmp_path: Path) -> None:
    for where, shown in (("-", 2), (str(tmp_path / "report.json"), 1)):
        streams = bench("--peers", "", "--limit", "1", "--json", where)
        assert "What the runs did" in str(streams[shown])
        assert "tokens/s by task, as a ratio to none" in str(streams[shown])
        assert "mean_acceptance_length = 1 + accepted draft tokens / rounds" in str(streams[shown])


def test_a_file_holds_the_report_and_nothing_else_is_left(bench: Bench, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    code, out, _ = bench("--peers", "", "--limit", "1", "--json", str(folder / "report.json"))
    assert code == 0
    assert os.listdir(folder) == ["report.json"]
    assert len(strict((folder / "report.json").read_text())["rows"]) == 4
    assert out.rstrip().endswith(f"written to {folder / 'report.json'}")


def test_the_same_command_goes_on_after_an_interruption(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = tmp_path / "report.json"
    command = ("--methods", "none,lookup", "--peers", "", "--json", str(report))
    undo = interrupt_after(5, monkeypatch)  # two warm-ups and three rows
    assert bench(*command)[0] == 130
    assert not report.exists()
    undo()
    kept = [json.loads(x) for x in Path(f"{report}.rows.jsonl").read_text().splitlines()[1:]]
    assert len(kept) == 3
    code, _, err = bench(*command)
    assert code == 0
    assert "going on after 3 decodes" in err
    found = strict(report.read_text())
    assert found["rows"][:3] == kept
    assert sorted((o["prompt"], r["run"]) for r in found["rows"] for o in r["outputs"]) == [
        (p, r) for p in ("bird", "lake", "rain") for r in ("lookup", "none")
    ]
    assert {r["identical"] for r in found["runs"]} == {3}
    assert not Path(f"{report}.rows.jsonl").exists()


def test_rows_of_another_bench_are_not_mixed_in(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = str(tmp_path / "report.json")
    undo = interrupt_after(3, monkeypatch)
    assert bench("--peers", "", "--json", report)[0] == 130
    undo()
    code, _, err = bench("--peers", "", "--methods", "none", "--json", report)
    assert code == 2
    assert "other settings" in err
    assert Path(f"{report}.rows.jsonl").exists()


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (("--methods", "magic"), "unknown method 'magic'"),
        (("--peers", "magic"), "unknown peer 'magic'"),
        (("--limit", "0"), "limit is 0"),
        (("--prompts", "/nowhere/rows.jsonl"), "cannot be read"),
        (("--methods", "draft_model"), "needs a draft model"),
        (("--json", "/nowhere/report.json"), "no file in a folder that exists"),
        (("--model", "/nowhere"), "there is no model '/nowhere'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(bench: Bench, args: tuple[str, ...], complaint: str) -> None:
    code, out, err = bench(*args)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert complaint in err


def test_the_command_names_no_home_folder_and_no_current_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.chdir(tmp_path)
    argv = ["/usr/bin/paceline", "bench", "--model", "/home/someone/m", "--prompts", f"{tmp_path}/a b.jsonl", "--limit", "2"]
    assert environment.command(argv) == "paceline bench --model ~/m --prompts './a b.jsonl' --limit 2"


def test_the_report_says_on_which_commit_and_hardware_it_was_made(bench: Bench) -> None:
    _, out, _ = bench("--peers", "", "--methods", "none", "--limit", "1", "--json", "-")
    found = strict(out)
    assert found["commit"] is None or re.fullmatch("[0-9a-f]{40}", found["commit"])
    assert found["hardware"]["cores"] >= 1
    assert found["hardware"]["memory_gb"] > 0
    assert found["versions"]["torch"]
    assert found["memory"]["peak_rss_mb"] >= found["memory"]["peak_rss_mb_after_loading_without_peers"] > 0
