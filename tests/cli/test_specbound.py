"""Self-drafting from the command line: its options, and what is refused before a model is loaded."""

from __future__ import annotations

import json

import pytest


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
