"""`paceline trace` as people call it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from .conftest import Call


@pytest.fixture
def trace(paceline: Call, model: str) -> Call:
    def call(*args: str, stdin: str = "") -> Any:
        return paceline("trace", "--model", model, "--dtype", "float32", "--method", "lookup", *args, stdin=stdin)

    return call


def story(file: Path) -> dict[str, Any]:
    found = re.search(r"const story = (.*);\n", file.read_text("utf-8"))
    assert found is not None
    return dict(json.loads(found[1]))


def test_the_page_holds_the_answer_that_generate_gives(trace: Call, generate: Call, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    done = trace("the rain falls and the rain", "--max-new-tokens", "20", "--out", str(file))
    assert (done.code, done.out) == (0, "")
    assert f"written to {file}" in done.err
    told = story(file)
    plain = generate("the rain falls and the rain", "--max-new-tokens", "20", "--method", "none", "--json").json
    assert told["tokens"] == len(plain["tokens"])
    assert "".join(told["pieces"]).startswith(plain["text"])
    assert (told["method"], told["lossless"], told["prompt"]) == ("lookup", True, "the rain falls and the rain")
    assert max(len(r["nodes"]) for r in told["rounds"]) > 1


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["hello", "--out", "/no/such/folder/page.html"], "--out /no/such/folder/page.html"),
        (["hello", "--max-new-tokens", "5000"], "at most 2000"),
        (["", "--out", "page.html"], "the prompt is empty"),
        (["hello", "--method", "lookup/rejection"], "rejection"),
    ],
)
def test_bad_input_is_refused_in_one_line(trace: Call, args: list[str], says: str) -> None:
    done = trace(*args)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert says in done.err
