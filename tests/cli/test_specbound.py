"""Self-drafting from the command line: its options, and what is refused before a model is loaded."""

from __future__ import annotations

import json

import pytest

from paceline.drafters.specbound import SpecBoundDrafter


def test_generate_counts_rounds_and_drafting_time(generate):
    drafts = ("--method", "specbound", "--exits", "lens", "--exit-settings", "threshold=0", "--exit-settings", "layers=1")
    done = generate("The rain falls", *drafts, "--num-speculative-tokens", "3", "--max-new-tokens", "16", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out.splitlines()[-1])
    figures = found["statistics"]
    assert found["lossless"] is True
    assert figures["rounds"] == figures["target_forwards"], "each round is one forward, the rest of one where a draft has begun it"
    assert figures["time_share"]["draft"] > 0, figures["time_share"]
    plain = json.loads(generate("The rain falls", "--method", "none", "--max-new-tokens", "16", "--json").out.splitlines()[-1])
    assert found["tokens"] == plain["tokens"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "specbound", "--exits", "nowhere"], "nowhere holds no exit heads"),
        (["--method", "specbound", "--exit-settings", "threshold=1.5"], "it would never fire"),
        (["--method", "specbound", "--exit-settings", "threshold"], "write it as threshold=0.8"),
        (["--method", "specbound", "--budget", "9"], "no effect with method specbound"),
        (["--method", "lookup", "--exits", "lens"], "no effect with method lookup"),
        (["--method", "lookup+specbound"], "name it alone"),
        (["--method", "specbound/easd"], "rule easd"),
    ],
)
def test_what_cannot_be_is_one_line_before_a_model_is_loaded(generate, monkeypatch, arguments, message):
    monkeypatch.setattr("paceline.targets.load.load", lambda *given, **named: pytest.fail("a model was loaded"))
    done = generate("The rain falls", *arguments)
    assert done.code == 2
    assert message in done.err, done.err


def test_exits_beyond_the_models_layers_are_one_line(generate):
    done = generate("The rain falls", "--method", "specbound", "--exit-settings", "layers=1,7")
    assert done.code == 2
    assert "exit layers are [1, 7]; in this target an exit is after 1 to 2 layers" in done.err, done.err


# where drafts are judged

LENS = ("--exits", "lens", "--exit-settings", "layers=1", "--exit-settings", "threshold=0", "--exit-settings", "annealing=0.25")


@pytest.fixture
def problem(tmp_path):
    file = tmp_path / "gsm8k.jsonl"
    file.write_text(json.dumps({"id": "a", "task": "gsm8k", "turns": ["the rain falls"], "reference": {"answer": "2"}}) + "\n")
    return file


@pytest.mark.parametrize(
    "command", [("audit", "--temperature", "0", "--method"), ("eval", "--task", "gsm8k", "--methods")], ids=["audit", "eval"]
)
def test_exits_and_their_settings_reach_the_drafter_wherever_drafts_are_judged(paceline, model, problem, monkeypatch, command):
    built, make = [], SpecBoundDrafter.__init__

    def remembered(self, *given, **named):
        make(self, *given, **named)
        built.append((type(self.exits).__name__, self.layers, self.bounds.threshold, self.annealing))

    monkeypatch.setattr(SpecBoundDrafter, "__init__", remembered)
    sizes = ("--max-new-tokens", "6", "--limit", "1", "--dtype", "float32", "--prompts", str(problem))
    done = paceline(*command, "specbound", "--model", model, *LENS, *sizes, "--json", "-")
    assert done.code == 0, done.err
    assert set(built) == {("LogitLens", (1,), 0.0, 0.25)}, built


@pytest.mark.parametrize("command", [("audit", "--method"), ("eval", "--task", "gsm8k", "--methods")], ids=["audit", "eval"])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lookup", "--exits", "lens"], "exits"),
        (["lookup", "--exit-settings", "threshold=0.5"], "exit_settings"),
        (["specbound", "--exits", "nowhere"], "nowhere holds no exit heads"),
        (["specbound", "--exit-settings", "threshold=1.5"], "it would never fire"),
        (["specbound", "--exit-settings", "threshold"], "write it as threshold=0.8"),
    ],
)
def test_exits_that_cannot_be_are_one_line_wherever_drafts_are_judged(paceline, monkeypatch, problem, command, arguments, message):
    monkeypatch.setattr("paceline.targets.load.load", lambda *given, **named: pytest.fail("a model was loaded"))
    monkeypatch.chdir(problem.parent)
    done = paceline(*command, *arguments)
    errors = [line for line in done.err.splitlines() if line.startswith("error: ")]
    assert (done.code, len(errors)) == (2, 1), done.err
    assert message in errors[0], errors[0]
