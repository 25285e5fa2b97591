"""The program as a whole: help, version, methods, pipes."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest

import paceline as package
from paceline.cli import console

from .conftest import Call

HEAVY = ["torch", "transformers", "numpy"]
LOSSY = {"resispec_printed", "csd", "random_rescue", "easd", "random_veto"}


def run(*args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "paceline.cli", *args], input=stdin, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("command", ["", "generate", "chat", "methods", "bench"])
def test_help_imports_nothing_heavy(command: str) -> None:
    code = (
        "import atexit, sys\n"
        f"atexit.register(lambda: print('HEAVY', sorted(set({HEAVY}) & set(sys.modules))))\n"
        f"from paceline.cli import main; main({[command, '--help'] if command else ['--help']})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Usage:" in done.stdout
    assert done.stdout.endswith("HEAVY []\n")


def test_every_command_is_in_the_help(paceline: Call) -> None:
    bare, asked = paceline(), paceline("--help")
    assert bare.out == asked.out
    assert bare.code == asked.code == 0
    for command in ("generate", "chat", "methods", "bench"):
        assert f"  {command} " in asked.out


def test_the_version_is_that_of_the_package(paceline: Call) -> None:
    assert paceline("--version").out == f"paceline {package.__version__}\n"


def test_methods_lists_the_whole_table(paceline: Call) -> None:
    from paceline.methods import DRAFTERS, RULES

    result = paceline("methods")
    for name in (*DRAFTERS, *RULES):
        assert f" {name} " in result.out
    found = paceline("methods", "--json").json
    assert [row["name"] for row in found["drafters"]] == list(DRAFTERS)
    assert [row["name"] for row in found["rules"]] == list(RULES)
    assert {row["name"] for row in found["rules"] if not row["lossless"]} == LOSSY


def test_a_reader_who_leaves_ends_it_quietly(model: str) -> None:
    command = [sys.executable, "-m", "paceline.cli", "generate", "the rain", "--model", model, "--stream", "--max-new-tokens", "200"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait() == 1


def test_each_piece_of_text_is_shown_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, encoding="utf-8"))
    console.write("the rain")
    assert raw.getvalue() == b"the rain"


def test_a_fresh_process_prints_json_and_nothing_else(model: str) -> None:
    done = run("generate", "-", "--model", model, "--json", "--max-new-tokens", "4", stdin="the rain")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["tokens"]) <= 4
    assert done.stderr == ""


def test_a_fresh_process_refuses_bytes_that_are_no_text(model: str) -> None:
    command = [sys.executable, "-m", "paceline.cli", "generate", "-", "--model", model]
    done = subprocess.run(command, input=b"caf\xe9", capture_output=True, check=False)
    assert done.returncode == 2
    assert done.stderr.decode().startswith("error: the prompt is not UTF-8 text")
