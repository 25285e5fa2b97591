"""`paceline eval` as people call it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.quality import figures, score
from paceline.quality.tasks import TASKS

from ..bench.interrupt import interrupt_after
from .conftest import LENGTH, QUESTIONS, Eval, rows, write

METHODS = "none,lookup,draft_model"


def strict(text: str) -> Any:
    def refuse(name: str) -> None:
        raise ValueError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.fixture
def known(tmp_path: Path, says: Callable[[str], str]) -> tuple[Path, int]:
    """Problems of which plain decoding solves a known number: every second reference is the number that it says, if it says one."""
    found = [figures.extract(says(TASKS["gsm8k"].prompt(q, chat=True))) for q in QUESTIONS]
    references = [{"answer": n if n and i % 2 == 0 else "123456789"} for i, n in enumerate(found)]
    correct = sum(r["answer"] != "123456789" for r in references)
    assert 0 < correct < len(QUESTIONS), f"{correct} of {len(QUESTIONS)}: the tiny model says {found}"
    return write(tmp_path / "known.jsonl", rows(list(references))), correct


def test_the_last_line_has_accuracy_pairs_and_speed_of_each_method(evaluate: Eval, draft_model: str, known: tuple[Path, int]) -> None:
    file, correct = known
    code, out, err = evaluate("--methods", METHODS, "--draft-model", draft_model, "--batch-size", "2", "--json", "-", file=file)
    assert code == 0, err
    assert out.count("\n") == 1
    found = strict(out)
    assert [m["method"] for m in found["methods"]] == METHODS.split(",")
    for line in found["methods"]:
        assert (line["correct"], line["different"]) == (correct, 0), line
        assert line["interval"] == pytest.approx(score.wilson(correct, len(QUESTIONS)))
        assert line["tokens_per_second"] == pytest.approx(line["tokens"] / line["seconds"])
        assert sum(line["outcomes"].values()) == len(QUESTIONS)
    none, lookup, _ = found["methods"]
    assert none["tokens_per_round"] == 1 < lookup["tokens_per_round"]
    assert none["vs_first"] is None
    pair = lookup["vs_first"]
    assert (pair["both"], pair["neither"], pair["p_value"]) == (correct, len(QUESTIONS) - correct, 1.0)
    assert found["sandbox"] is None
    assert [g["problem"] for g in found["grades"]] == [f"p{i}" for i in range(8)]


def test_the_table_shows_what_a_reader_needs(evaluate: Eval) -> None:
    code, out, err = evaluate("--methods", "none,lookup", "--limit", "2")
    assert code == 0, err
    for words in ("gsm8k, 2 problems", "accuracy [95%]", "tokens/round", "against none", "McNemar p", "p_value = exact McNemar test"):
        assert words in out, f"{words!r} is not in {out}"


def test_methods_take_turns_at_each_group_of_problems(evaluate: Eval) -> None:
    _, out, _ = evaluate("--methods", "none,lookup", "--batch-size", "2", "--json", "-")
    found = [(r["run"], len(r["outputs"])) for r in strict(out)["rows"]]
    assert found == [("none", 6), ("lookup", 6), ("lookup", 2), ("none", 2)]


def test_seeds_make_sampling_repeatable_and_each_problem_has_its_own(evaluate: Eval, tmp_path: Path) -> None:
    twice = rows([{"answer": "1"}, {"answer": "2"}])
    file = write(tmp_path / "twice.jsonl", twice)

    def tokens(seed: str) -> list[list[int]]:
        _, out, err = evaluate("--methods", "none", "--temperature", "1", "--seed", seed, "--json", "-", file=file)
        assert out, err
        return [o["tokens"] for r in strict(out)["rows"] for o in r["outputs"]]

    assert tokens("1") == tokens("1") != tokens("2")


def test_methods_are_paired_on_the_grades_that_are_listed(evaluate: Eval, draft_model: str, problems: Path, tmp_path: Path) -> None:
    drawn = "draft_model/rejection"  # its draws come in another order

    def sampled(file: Path) -> Any:
        _, out, err = evaluate("--methods", f"{drawn},none", "--draft-model", draft_model, "--temperature", "1", "--json", "-", file=file)
        assert out, err
        return strict(out)

    said = [g["methods"]["none"].get("answer", "-1") for g in sampled(problems)["grades"]]
    found = sampled(write(tmp_path / "solved.jsonl", rows([{"answer": a} for a in said])))  # of which plain decoding solves most
    right = {m: [g["methods"][m]["outcome"] == "correct" for g in found["grades"]] for m in (drawn, "none")}
    first, none = found["methods"]
    assert [first["correct"], none["correct"]] == [sum(right[drawn]), sum(right["none"])]
    assert first["correct"] < none["correct"], "draws of two methods differ, so this proves little"
    assert none["vs_first"] == score.paired(right[drawn], right["none"])
    assert [first["different"], none["different"]] == [None, None]


def test_code_is_run_in_the_sandbox_and_its_walls_are_named(evaluate: Eval, tmp_path: Path) -> None:
    reference = {"entry_point": "sing", "test": "def check(candidate):\n    pass\n"}
    file = write(tmp_path / "code.jsonl", rows([reference], "humaneval"))
    code, out, err = evaluate("--methods", "none", "--json", "-", task="humaneval", file=file)
    assert code == 0, err
    found = strict(out)
    assert "limits" in found["sandbox"]["layers"]
    assert set(found["methods"][0]["outcomes"]) <= {"no_answer", "error"}, "a tiny model writes no Python"


def test_a_method_of_ours_is_named_with_its_rule_and_told_to_be_lossy(evaluate: Eval, draft_model: str) -> None:
    _, out, err = evaluate("--methods", "none,draft_model/resispec_printed", "--draft-model", draft_model, "--limit", "1", "--json", "-")
    assert out, err
    assert [(m["rule"], m["lossless"], m["rules"]) for m in strict(out)["methods"]] == [
        ("match", True, {}),
        ("resispec_printed", False, {}),
    ]


def test_a_lossy_rule_tells_in_what_the_tokens_differ_that_it_altered(evaluate: Eval, draft_model: str) -> None:
    loose = [part for setting in ("preset=published", "tests=gate", "tau=1e-9") for part in ("--rule-settings", f"csd.{setting}")]
    command = ("--methods", "draft_model/csd", "--draft-model", draft_model, *loose, "--limit", "2", "--json", "-")
    _, out, err = evaluate(*command)
    assert out, err
    did = strict(out)["methods"][0]["rules"]["csd"]
    pairs = [pair for row in strict(out)["rows"] for each in row["outputs"] for pair in each["rules"]["csd"]["pairs"]]
    assert 0 < sum(did["kinds"].values()) == sum(count for *_, count in pairs) <= did["altered"]


def test_raw_prompts_have_no_template(evaluate: Eval) -> None:
    _, out, _ = evaluate("--methods", "none", "--limit", "1", "--raw", "--json", "-")
    assert strict(out)["prompt"] == "Question: {question}\nAnswer:"


def test_the_same_command_goes_on_after_an_interruption(evaluate: Eval, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = tmp_path / "report.json"
    command = ("--methods", "none,lookup", "--limit", "3", "--json", str(report))
    undo = interrupt_after(2 + 3, monkeypatch)  # two warm-ups and three rows
    assert evaluate(*command)[0] == 130
    assert not report.exists()
    undo()
    kept = [json.loads(x) for x in Path(f"{report}.rows.jsonl").read_text().splitlines()[1:]]
    code, out, err = evaluate(*command)
    assert code == 0, err
    assert "going on after 3 decodes" in err
    found = strict(report.read_text())
    assert (found["rows"][:3], len(found["rows"])) == (kept, 6)
    assert out.rstrip().endswith(f"written to {report}")
    assert not Path(f"{report}.rows.jsonl").exists()


@pytest.mark.parametrize("change", [("--temperature", "1"), ("--raw",), ("--max-new-tokens", "5")])
def test_rows_of_another_evaluation_are_not_mixed_in(
    evaluate: Eval, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: tuple[str, ...]
) -> None:
    report = str(tmp_path / "report.json")
    undo = interrupt_after(2, monkeypatch)
    assert evaluate("--methods", "none", "--json", report)[0] == 130
    undo()
    code, _, err = evaluate("--methods", "none", "--json", report, *change)
    assert (code, "other settings" in err) == (2, True), err
    assert Path(f"{report}.rows.jsonl").exists()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--task", "magic"), ["unknown task 'magic'", "gsm8k, math500, humaneval, mbpp"]),
        (("--task", "mbpp"), ["has no row of task mbpp"]),
        (("--methods", "magic"), ["unknown method 'magic'"]),
        (("--methods", "none,none"), ["names 'none' twice"]),
        (("--methods", "draft_model"), ["needs a draft model"]),
        (("--limit", "0"), ["limit is 0"]),
        (("--prompts", "/nowhere/rows.jsonl"), ["cannot be read"]),
        (("--hub",), ["--hub and --prompts"]),
        (("--seed", "1"), ["seed has no effect at temperature 0"]),
        (("--on-bad-line", "ask"), ["must be stop or skip"]),
        (("--batch-size", "0"), ["batch_size is 0"]),
        (("--json", "/nowhere/report.json"), ["no file in a folder that exists"]),
        (("--model", "/nowhere"), ["there is no model '/nowhere'"]),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, tuple) else "",
)
def test_bad_input_is_one_line_and_exit_code_2(evaluate: Eval, args: tuple[str, ...], words: list[str]) -> None:
    code, out, err = evaluate(*args)
    assert (code, out) == (2, ""), err
    assert err.startswith("error: ")
    assert err.count("\n") == 1, err
    for word in words:
        assert word in err, f"{word!r} is not in {err!r}"


def test_without_a_file_the_problems_are_looked_for_in_the_current_folder(
    evaluate: Eval, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = evaluate("--methods", "none", file=None)
    assert (code, "there is no gsm8k.jsonl in the current folder" in err) == (2, True), err
    write(tmp_path / "gsm8k.jsonl", rows([{"answer": "1"}]))
    assert evaluate("--methods", "none", file=None)[0] == 0


def test_a_problem_longer_than_the_context_is_named(evaluate: Eval, tmp_path: Path) -> None:
    long = rows([{"answer": "1"}])
    long[0]["turns"] = ["how many birds? " * 200]
    code, _, err = evaluate("--methods", "none", file=write(tmp_path / "long.jsonl", long))
    assert (code, "problem p0 has" in err) == (2, True), err


def test_answers_that_reach_the_limit_are_counted(evaluate: Eval) -> None:
    _, out, _ = evaluate("--methods", "none", "--limit", "4", "--json", "-")
    found = strict(out)
    cut = sum(len(o["tokens"]) == LENGTH for r in found["rows"] for o in r["outputs"])
    assert found["methods"][0]["cut_short"] == cut > 0


def test_later_methods_are_compared_with_an_earlier_evaluation(
    evaluate: Eval, draft_model: str, known: tuple[Path, int], tmp_path: Path
) -> None:
    file, correct = known
    earlier = tmp_path / "earlier.json"
    assert evaluate("--methods", "none", "--json", str(earlier), file=file)[0] == 0
    later = ("--methods", "lookup,draft_model", "--draft-model", draft_model, "--against", str(earlier))
    _, out, err = evaluate(*later, "--json", "-", file=file)
    assert out, err
    found = strict(out)
    assert (found["first"], found["against"]["file"]) == ("none", "earlier.json")
    for line in found["methods"]:
        pair = line["vs_first"]
        assert (pair["both"], pair["neither"], line["different"]) == (correct, len(QUESTIONS) - correct, 0), line
    _, out, err = evaluate(*later, file=file)
    assert "against none in earlier.json" in out, err
    assert all(line.split()[0] in out.partition("only this")[2] for line in ("lookup", "draft_model")), out


def test_what_the_earlier_method_solved_is_what_its_report_says(evaluate: Eval, known: tuple[Path, int], tmp_path: Path) -> None:
    file, correct = known
    earlier = tmp_path / "earlier.json"
    evaluate("--methods", "none", "--json", str(earlier), file=file)
    changed = strict(earlier.read_text())
    for grade in changed["grades"]:
        grade["methods"]["none"]["outcome"] = "wrong"
    changed["rows"][0]["outputs"][0]["tokens"].append(1)
    earlier.write_text(json.dumps(changed))
    _, out, err = evaluate("--methods", "none", "--against", str(earlier), "--json", "-", file=file)
    assert out, err
    line = strict(out)["methods"][0]
    assert (line["vs_first"]["only_this"], line["vs_first"]["both"], line["different"]) == (correct, 0, 1), line


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--limit", "3"), "differ in 5 problems"),
        (("--max-new-tokens", "5"), "had max_new_tokens 24, and this one has 5"),
        (("--raw",), "had chat True, and this one has False"),
        (("--temperature", "1"), "had temperature 0.0, and this one has 1.0"),
        (("--dtype", "bfloat16"), "was made in float32, and this one would be in bfloat16"),
    ],
)
def test_an_earlier_evaluation_of_something_else_is_refused(evaluate: Eval, tmp_path: Path, args: tuple[str, ...], words: str) -> None:
    earlier = tmp_path / "earlier.json"
    assert evaluate("--methods", "none", "--json", str(earlier))[0] == 0
    code, out, err = evaluate("--methods", "none", "--against", str(earlier), *args)
    assert (code, out, words in err) == (2, "", True), err
    assert err.strip().splitlines()[-1].startswith("error: "), err


@pytest.mark.parametrize(
    ("text", "words"), [(None, "cannot be read"), ("{", "is no report"), ("[]", "is no report"), ("{}", "is no report")]
)
def test_a_file_that_is_no_evaluation_is_refused(evaluate: Eval, tmp_path: Path, text: str | None, words: str) -> None:
    file = tmp_path / "no.json"
    if text is not None:
        file.write_text(text)
    code, out, err = evaluate("--methods", "none", "--against", str(file))
    assert (code, out, words in err) == (2, "", True), err
