"""The page and the figures of a bench: what they say is what its file says."""

from __future__ import annotations

import copy
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from paceline.cli import main
from paceline.errors import InvalidRequest, PacelineError
from paceline.report import figures, page, read
from paceline.report.cases import losing_prompts, losing_tasks

RESULT = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "qwen2.5-coder-1.5b-bf16.json"


@pytest.fixture(scope="module")
def bench() -> dict[str, Any]:
    return read.bench(RESULT)


def row(run: str, prompt: str, tokens: int, seconds: float) -> dict[str, Any]:
    return {"run": run, "seconds": seconds, "outputs": [{"prompt": prompt, "tokens": [0] * tokens}]}


def small(*rows: dict[str, Any], **by_task: float) -> dict[str, Any]:
    told = {task: {"speedup_vs_none": value} for task, value in by_task.items()}
    slow = {"a": {"speedup_vs_none": 0.5}}
    runs = [
        {"run": "none", "rule": "match", "by_task": slow},
        {"run": "lookup", "rule": "match", "by_task": told},
        {"run": "peer", "by_task": slow},
    ]
    return {"runs": runs, "rows": list(rows)}


def test_losing_tasks_come_worst_first_without_baseline_and_peers() -> None:
    assert [(c.run, c.what, c.speedup) for c in losing_tasks(small(a=0.9, b=1.2, c=0.7))] == [("lookup", "c", 0.7), ("lookup", "a", 0.9)]


def test_losing_prompts_pool_repeats_and_leave_batches_out() -> None:
    batch = {"run": "lookup", "seconds": 9.0, "outputs": row("", "x", 1, 1)["outputs"] + row("", "y", 1, 1)["outputs"]}
    found = losing_prompts(
        small(
            row("none", "x", 10, 1.0), row("none", "y", 10, 1.0), row("lookup", "x", 10, 1.5), row("lookup", "x", 10, 2.5),
            row("lookup", "y", 10, 0.5), batch,
        )
    )  # fmt: skip
    assert [(c.what, c.speedup) for c in found] == [("x", 0.5)]


def test_each_run_of_a_grid_is_held_against_its_own_baseline() -> None:
    runs = [{"run": f"{m} T={t}", "method": m, "rule": "match", "baseline": f"none T={t}"} for t in (0, 1) for m in ("none", "lookup")]
    rows = [row("none T=0", "x", 10, 1.0), row("lookup T=0", "x", 10, 0.5), row("none T=1", "x", 10, 0.1), row("lookup T=1", "x", 10, 0.2)]
    found = losing_prompts({"runs": runs, "rows": rows})
    assert [(c.run, c.speedup) for c in found] == [("lookup T=1", 0.5)], "at T=0 it is twice as quick"


def test_the_page_names_all_temperatures_and_batch_sizes(bench: dict[str, Any]) -> None:
    many = {**bench["settings"], "temperatures": [0.0, 0.7], "batch_sizes": [1, 4], "temperature": None, "batch_size": None}
    assert "temperature 0, 0.7, batch 1, 4." in page.page({**bench, "settings": many}, {})
    assert "temperature 0, batch 1." in page.page(bench, {})


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("table", "svg", "div", "p", "h2", "pre"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("table", "svg", "div", "p", "h2", "pre"):
            assert self.open.pop() == tag


def test_the_page_holds_every_run_and_figure_and_needs_nothing_else(bench: dict[str, Any]) -> None:
    made = figures.figures(bench, {"1": {1: 0.1, 8: 0.2}})
    text = page.page(bench, made)
    reader = Reader()
    reader.feed(text)
    assert not reader.open
    assert sum(tag == "svg" for tag, _ in reader.tags) == len(made) == 4
    assert not [t for t, _ in reader.tags if t in ("script", "link", "iframe", "img")]
    outside = [a[k] for _, a in reader.tags for k in ("src", "href", "xlink:href") if (a.get(k) or "#")[0] != "#"]
    assert not outside, f"the page asks for {outside}"
    for run in bench["runs"]:
        assert f"{run['tokens_per_second']:.1f}" in text, run["run"]
    assert bench["command"] in text.replace("&#x27;", "'").replace("&quot;", '"')


def test_slower_cells_are_marked(bench: dict[str, Any]) -> None:
    text = page.page(bench, {})
    worst = losing_tasks(bench)[0]
    assert f'<td class="slow">{worst.speedup:.2f}x</td>' in text


def test_no_text_of_a_bench_becomes_markup(bench: dict[str, Any]) -> None:
    evil = copy.deepcopy(bench)
    evil["remarks"], evil["settings"]["model"], evil["command"] = ["<b>r</b>"], "<i>m", "a && <script>"
    evil["differences"] = [{"run": "<u>", "prompt": "<s>", "position": 1, "reference_text": "<q>", "text": "</td>", "logit_margin": 0.5}]
    text = page.page(evil, {})
    for tag in ("<b>r</b>", "<i>m", "<script>", "<u>", "<s>", "<q>"):
        assert tag not in text.replace("<p><b>&lt;", ""), tag


def test_a_skipped_peer_says_why(bench: dict[str, Any]) -> None:
    some = {**bench, "runs": [*bench["runs"], {"run": "transformers-early-exit", "skipped": "not <installed>"}]}
    assert "skipped: not &lt;installed&gt;" in page.page(some, figures.figures(some))


@pytest.mark.parametrize(
    ("text", "says"), [(None, "cannot be read"), ("{", "no JSON"), ("[]", "no report of a bench"), ('{"runs": []}', "is missing")]
)
def test_what_is_no_bench_is_refused(tmp_path: Path, text: str | None, says: str) -> None:
    file = tmp_path / "bench.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(InvalidRequest, match=says):
        read.bench(file)


def test_a_bench_without_a_run_is_refused(bench: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="no run"):
        figures.figures({**bench, "runs": []})


def test_the_command_writes_page_and_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["report", str(RESULT), "--out", str(tmp_path / "r.html"), "--images", str(tmp_path / "figures")])
    assert not ended.value.code, capsys.readouterr().err
    assert re.search("<svg", (tmp_path / "r.html").read_text("utf-8"))
    assert {f.name for f in (tmp_path / "figures").iterdir()} == {
        f"{name}.{kind}" for name in ("speedup", "acceptance", "time") for kind in ("png", "svg", "pdf")
    }


def test_a_page_that_cannot_be_written_says_so(bench: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(PacelineError, match="cannot be written"):
        page.write(bench, {}, tmp_path / "no" / "r.html")
    (tmp_path / "file").write_text(json.dumps(1))
    with pytest.raises(PacelineError, match="cannot be written"):
        figures.save(figures.figures(bench), tmp_path / "file")
