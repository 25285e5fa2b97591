"""The head that comes with Paceline, on the embedded model: no flags, the same text, fewer forwards."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import paceline
from paceline import api, engine, methods
from paceline.bench import suites
from paceline.heads.shipped import head_folder
from paceline.sampling import SamplingParams
from paceline.stats import Stats
from paceline.targets.hf import HFTarget

pytestmark = pytest.mark.real

LIMIT = 30_000_000  # bytes


@pytest.fixture(scope="module")
def target() -> HFTarget:
    return paceline.load("smollm2", dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def decoded(target) -> dict[str, tuple[list[list[int]], Stats]]:
    """Outputs and counts of some methods on one built-in prompt of each kind."""
    prompts = suites.choose(suites.read(), 1)[:6]
    found = {}
    options = {
        "none": methods.Options(),
        "jetspec": methods.Options(budget=16),
        "lookup+jetspec": methods.Options(budget=16),
        "specbound": methods.Options(
            num_speculative_tokens=4, exit_settings={"threshold": 0.5, "depth": 15}
        ),  # else costs here would decide
    }
    for method, told in options.items():
        seqs = [api.request(target, p.turns[0], SamplingParams(max_new_tokens=40)) for p in prompts]
        stats = Stats()
        for round_ in engine.stream(target, *methods.build(method, target, told), seqs, 6):
            stats.add(round_)
        found[method] = [s.output for s in seqs], stats
    return found


@pytest.mark.parametrize("method", ["jetspec", "lookup+jetspec", "specbound"])
def test_the_text_is_the_targets_own(decoded, method):
    assert decoded[method][0] == decoded["none"][0]


def test_it_drafts_what_the_target_says(decoded):
    lengths = {method: round(stats.mean_acceptance_length, 2) for method, (_, stats) in decoded.items()}
    assert lengths["jetspec"] > 1.4, f"mean acceptance lengths {lengths}"
    assert lengths["lookup+jetspec"] > lengths["jetspec"] - 0.05, f"mean acceptance lengths {lengths}"
    assert lengths["specbound"] > 1.05, f"mean acceptance lengths {lengths}"


def test_it_is_small_and_its_card_says_where_it_comes_from():
    folder = head_folder(None, "smollm2")
    size = sum(p.stat().st_size for p in Path(folder).rglob("*"))
    card = json.loads((folder / "card.json").read_text())
    assert size < LIMIT, f"{size / 1e6:.1f} MB"
    assert card["data"]["answers_regenerated"] is True
    assert card["evaluation"]["decoding"]["mean_acceptance_length"] > 1.4
    assert "/" not in "".join(card["training"]["recipe"]["data"]["prompts"]), "a card names no folders"
