"""A head on the embedded model's real weights: whatever it drafts, the text is the target's own."""

from __future__ import annotations

import pytest
import torch

import paceline
from paceline import api, engine, methods
from paceline.heads import formats
from paceline.heads.init import init_from_target
from paceline.heads.jetspec import JetSpecConfig, JetSpecHead
from paceline.sampling import SamplingParams
from paceline.targets.hf import HFTarget

pytestmark = pytest.mark.real

PROMPTS = ["Write a haiku about rain.", "Repeat this list three times: red, green, blue, yellow."]


@pytest.fixture(scope="module")
def target() -> HFTarget:
    return paceline.load("smollm2", dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def head(target, tmp_path_factory) -> str:
    """A head that starts from the target's last layers and has learnt nothing yet."""
    torch.manual_seed(0)
    config = JetSpecConfig.for_target(target, draft_vocab_size=8192, markov_rank=64)
    made = JetSpecHead.for_target(target, config, torch.arange(8192))
    init_from_target(made, paceline.load("smollm2", dtype="float32", device="cpu", weights="plain"))
    folder = tmp_path_factory.mktemp("head")
    formats.save(made, folder)
    return str(folder)


def decode(target: HFTarget, method: str, **options) -> list[list[int]]:
    seqs = [api.request(target, prompt, SamplingParams(max_new_tokens=24)) for prompt in PROMPTS]
    return [s.output for s in engine.generate(target, *methods.build(method, target, methods.Options(**options)), seqs)]


@pytest.mark.parametrize("method", ["jetspec", "lookup+jetspec"])
@pytest.mark.parametrize("budget", [None, 24])
def test_an_untrained_head_does_not_change_the_text(target, head, method, budget):
    assert decode(target, method, head=head, budget=budget) == decode(target, "none")


def test_its_weights_are_small(head):
    from pathlib import Path

    size = sum(p.stat().st_size for p in Path(head).iterdir())
    assert size < 30e6, f"{size / 1e6:.1f} MB"
