"""The docs are run: tutorial code drafts and decides on a tiny model, links point at files, and every command has its options."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import types
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner

from paceline import engine, methods
from paceline.cli import app
from paceline.draft import Draft
from paceline.errors import IncompatibleRule
from paceline.rules.match import match
from paceline.rules.rejection import rejection
from paceline.sampling import SamplingParams, target_probs
from paceline.sequence import Sequence as Request
from paceline.targets.hf import HFTarget
from paceline.tree import Tree

from . import matrix, tiny
from .drafts import Planted
from .oracle import answer, oracle

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PROMPT = matrix.PROMPTS["short"]
COUNT = 24


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, *languages: str) -> list[str]:
    """The fenced blocks of these languages."""
    return [text for language, text in re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), re.S | re.M) if language in languages]


def module(page: str) -> types.ModuleType:
    """The first python block of a page, run."""
    made = types.ModuleType(page.replace("/", "_").removesuffix(".md"))
    exec(compile(blocks(ROOT / page, "python")[0], page, "exec"), made.__dict__)
    return made


# --- add a drafter


@pytest.fixture(scope="module")
def repeat() -> Any:
    return module("docs/add-a-drafter.md").RepeatDrafter()


@pytest.mark.parametrize("prompt", matrix.PROMPTS.values(), ids=matrix.PROMPTS)
def test_the_drafter_of_the_tutorial_gives_the_targets_own_text(repeat, target, prompt):
    (seq,) = engine.generate(target, repeat, match, [matrix.request(prompt, COUNT)])
    matrix.expect(seq.output, answer("llama", prompt, COUNT), f"RepeatDrafter after {len(prompt)} tokens")


def test_the_drafter_of_the_tutorial_is_right_where_the_text_repeats(repeat):
    model = tiny.build(tiny.config("llama", initializer_range=0.02, tie_word_embeddings=True))  # it says the last token again
    want = oracle(model, PROMPT, COUNT)[len(PROMPT) :]
    seq = matrix.request(PROMPT, COUNT)
    accepted = sum(r.num_accepted for r in engine.stream(HFTarget(model), repeat, match, [seq]))
    matrix.expect(seq.output, want, "RepeatDrafter on a text that repeats")
    same = sum(a == b for a, b in pairwise(want))
    assert accepted > COUNT // 2, f"{accepted} of {COUNT} tokens were accepted; {same} equal the one before"


def test_no_draft_of_the_tutorial_is_deeper_than_the_room(repeat):
    seqs = [Request([1, 2, 3], SamplingParams(max_new_tokens=room)) for room in (1, 2, 5, 9)]
    depths = [max(d.tree.depth) for d in repeat.propose(seqs)]
    assert depths == [0, 1, 4, 4], f"depths {depths} for rooms of 1, 2, 5, 9"


def test_rejection_is_refused_for_the_drafter_of_the_tutorial_as_its_comment_says(repeat, target):
    with pytest.raises(IncompatibleRule, match="RepeatDrafter proposes fixed ones"):
        next(engine.rounds(target, repeat, rejection, [matrix.request(PROMPT, 4)]))


# --- add a rule


@pytest.fixture(scope="module")
def confident() -> Any:
    return module("docs/add-a-rule.md").confident


@pytest.mark.parametrize("prompt", matrix.PROMPTS.values(), ids=matrix.PROMPTS)
def test_the_rule_of_the_tutorial_gives_the_targets_own_text(confident, target, prompt):
    seq = matrix.request(prompt, COUNT)
    accepted = sum(r.num_accepted for r in engine.stream(target, Planted(), confident, [seq]))
    matrix.expect(seq.output, answer("llama", prompt, COUNT), f"rule confident after {len(prompt)} tokens")
    assert accepted > 3, f"only {accepted} of {COUNT} tokens were accepted: the rule was not put to work"


class Always:
    """A source of randomness that draws this token."""

    def __init__(self, token: int) -> None:
        self.token = token

    def pick(self, probs: torch.Tensor) -> int:
        assert probs[self.token] > 0, f"token {self.token} has no mass"
        return self.token

    def coin(self, prob: float) -> bool:
        raise AssertionError("the rule draws no coins")


@pytest.mark.parametrize(
    ("drawn", "path", "token"),
    [(0, [0, 1], 2), (1, [0], 1), (2, [0], 2)],
    ids=["a confident child is kept", "an unconfident child ends the round", "no child ends the round"],
)
def test_the_rule_of_the_tutorial_keeps_what_it_says(confident, drawn, path, token):
    tree = Tree((5, 0, 1), (-1, 0, 0))
    after_root, after_child = [0.6, 0.3, 0.1], [1e-9, 1e-9, 1.0]
    seq = Request([5], SamplingParams(temperature=1.0))
    logits = torch.tensor([after_root, after_child, after_child]).log()
    (laws,) = target_probs(logits, [3], [seq], [tree])

    class Drawn(Always):
        def pick(self, probs: torch.Tensor) -> int:
            return super().pick(probs) if float(probs[2]) < 0.5 else 2

    verdict = confident(Draft(tree), laws, Drawn(drawn))
    assert verdict == (path, token), f"token {drawn} was drawn with mass {after_root[drawn]}"


# --- links and commands


def links(page: Path) -> list[str]:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)
    found = re.findall(r"\]\(\s*<?([^)>\s]+)", text)
    return [link.partition("#")[0] for link in found if not re.match(r"[a-z]+:|#", link)]


LINKS = [(page, link) for page in PAGES for link in dict.fromkeys(links(page))]


@pytest.mark.parametrize(("page", "link"), LINKS, ids=[f"{name_of(p)}:{link}" for p, link in LINKS])
def test_every_relative_link_points_at_a_file(page, link):
    assert (page.parent / link).exists(), f"{name_of(page)} links to {link}, which is not there"


def test_the_readme_leads_to_every_page():
    seen, queue = set(), [ROOT / "README.md"]
    while queue:
        page = queue.pop()
        if page not in seen and page.suffix == ".md" and page.is_file():
            seen.add(page)
            queue += [(page.parent / link).resolve() for link in links(page)]
    lost = [name_of(p) for p in PAGES if p not in seen]
    assert not lost, f"{len(lost)} pages that no link leads to: {lost}"


def code(page: Path) -> list[str]:
    """Lines of shell blocks and spans of inline code, without comments."""
    text = page.read_text()
    lines = [line for block in blocks(page, "bash", "sh", "console") for line in block.replace("\\\n", " ").splitlines()]
    spans = re.findall(r"(?<!`)`([^`]+)`(?!`)", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M))
    return [" ".join(c.removeprefix("$ ").split()) for c in (*lines, *spans)]


COMMANDS = [(page, c) for page in PAGES for c in code(page) if c.startswith("paceline ")]
IDS = [f"{name_of(p)}:{c}" for p, c in COMMANDS]


def words(command: str) -> list[str]:
    """A command's words up to a pipe, a redirection or a comment."""
    found = shlex.split(command, comments=True)
    end = next((i for i, w in enumerate(found) if w in {"<", ">", "|", "&&", "2>"}), len(found))
    return found[1:end]


@cache
def options(command: str) -> frozenset[str]:
    """All options that the help of a command shows."""
    result = CliRunner().invoke(app, [*command.split(), "--help"])
    assert result.exit_code == 0, f"there is no command `paceline {command}`: {result.output[-200:]}"
    return frozenset(re.findall(r"(?<!\S)--?[a-z][a-z-]*", result.output))


def commands() -> list[str]:
    """All commands, those of a group as `group command`."""
    found = typer.main.get_command(app).commands
    return [f"{name} {inner}".strip() for name, command in found.items() for inner in getattr(command, "commands", [""])]


def command_of(found: list[str]) -> tuple[str, list[str]]:
    """The command at the beginning of these words, and the words after it."""
    size = 2 if " ".join(found[:2]) in commands() else 1
    return " ".join(found[:size]), found[size:]


def all_options() -> frozenset[str]:
    return frozenset().union(*map(options, commands()))


def test_the_docs_show_commands():
    shown = {words(c)[0] for _, c in COMMANDS}
    assert shown >= {"generate", "chat", "bench", "methods"}, f"the docs show {sorted(shown)} only"


@pytest.mark.parametrize(("page", "command"), COMMANDS, ids=IDS)
def test_every_command_shown_has_the_options_that_it_is_given(page, command):
    name, rest = command_of(words(command))
    wrong = [w for w in rest if w.startswith("--") and w.partition("=")[0] not in options(name)]
    assert not wrong, f"{name_of(page)}: paceline {name} has no {wrong}"


@pytest.mark.parametrize(("page", "command"), COMMANDS, ids=IDS)
def test_every_method_shown_in_a_command_exists(page, command):
    rest = words(command)
    named = [m for flag, value in pairwise(rest) if flag in {"--method", "--methods"} for m in value.split(",")]
    for method in named:
        methods.parse(method)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_option_named_in_the_text_exists(page):
    others = ("paceline ", "pip ", "git ", "python benchmarks/")
    named = {w for c in code(page) if not c.startswith(others) for w in re.findall(r"(?<!\S)--[a-z][a-z-]*", c)}
    assert named <= all_options(), f"{name_of(page)} names {sorted(named - all_options())}"


SCRIPTS = [(page, c) for page in PAGES for c in code(page) if c.startswith("python benchmarks/")]


@pytest.mark.parametrize(("page", "command"), SCRIPTS, ids=[f"{name_of(p)}:{c[:40]}" for p, c in SCRIPTS])
def test_a_benchmark_shown_has_the_options_that_it_is_given(page, command):
    known = set(re.findall(r'"(--[a-z][a-z-]*)"', (ROOT / command.split()[1]).read_text("utf-8")))
    assert set(re.findall(r"(?<!\S)--[a-z][a-z-]*", command)) <= known, f"{name_of(page)}: {command}"


@pytest.mark.parametrize("script", sorted({c.split()[0] for c in code(ROOT / "README.md") if c.startswith("scripts/")}))
def test_every_script_shown_in_the_readme_can_be_run(script):
    assert (ROOT / script).stat().st_mode & 0o111, f"{script} is not executable"


@pytest.mark.real
def test_the_python_of_the_readme_runs_as_it_is(capsys):
    exec(compile(blocks(ROOT / "README.md", "python")[0], "README.md", "exec"), {})
    *text, length = capsys.readouterr().out.split()
    assert len(text) > 3, f"it said {text}"
    assert float(length) >= 1, f"mean acceptance length {length}"


def test_the_numbers_on_the_pages_are_those_of_the_result_files():
    done = subprocess.run([sys.executable, str(ROOT / "scripts" / "results")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
