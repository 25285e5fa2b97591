"""`paceline bench --record`: what methods drafted, kept and refused, for training to learn from."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.record.recorder import all_records

from .conftest import Bench
from .test_command import strict


def test_each_method_that_drafts_keeps_the_rounds_of_every_prompt(bench: Bench, tmp_path: Path) -> None:
    words = ("--methods", "none,lookup", "--budgets", "3,6", "--peers", "", "--max-new-tokens", "12")
    code, out, err = bench(*words, "--record", str(tmp_path / "r"), "--json", "-")
    assert code == 0, err
    assert sorted(f.name for f in (tmp_path / "r").iterdir()) == ["lookup_budget=3", "lookup_budget=6"]
    found = strict(out)
    for run in found["runs"][1:]:
        texts = all_records(tmp_path / "r" / run["run"].replace(" ", "_"))
        assert len(texts) == len(found["prompts"]), "texts of the warm-up are kept, or some are missing"
        assert {text.domain for text in texts} == {"bench"}
        assert sum(r.taken for text in texts for r in text.rounds) == run["tokens"]


@pytest.mark.parametrize("methods", ["none", "none,draft_model/rejection+csd"], ids=["no draft", "lossy"])
def test_a_bench_without_rounds_to_learn_from_refuses_to_record(bench: Bench, tmp_path: Path, methods: str) -> None:
    words = ("--draft-model", "folder") if "draft" in methods else ()
    code, _, err = bench("--methods", methods, "--peers", "", *words, "--record", str(tmp_path / "r"))
    assert (code, "record has no effect on" in err) == (2, True), err
    assert not (tmp_path / "r").exists()
