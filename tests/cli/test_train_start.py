"""`paceline train jetspec` from a head that is there: its weights, less what the new shape has no place for; or a clear refusal."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from paceline.heads import formats
from paceline.heads.config import JetSpecConfig
from paceline.heads.jetspec import JetSpecHead
from paceline.targets.load import load

from ..train.conftest import prompts_file
from .test_train import card
from .test_train import train as train


def test_training_goes_on_from_a_head_under_the_shape_that_is_asked_for(train, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    prompts = prompts_file(tmp_path, 16)
    assert train(first, prompts, "--steps", "4", head__last_feature="true").code == 0
    again = {"head__start": str(first / "head"), "optimizer__lr": 1e-9}
    done = train(second, prompts, "--steps", "1", **again)
    assert done.code == 0, done.err
    assert "without its last_proj.weight" in done.err, done.err
    old, new = (load_file(out / "head" / "model.safetensors") for out in (first, second))
    assert set(old) - set(new) == {"last_proj.weight"}
    differing = [name for name in new if not torch.allclose(old[name].float(), new[name].float(), atol=1e-4)]
    assert not differing, f"{differing} did not start from {first}"
    assert card(second)["training"]["recipe"]["head"]["start"] == "head", "a card names no folders"


@pytest.fixture(scope="module")
def started(model, tmp_path_factory) -> Path:
    """A head of the shape of SMALL that has learnt nothing."""
    target, folder = load(model, dtype="float32", device="cpu"), tmp_path_factory.mktemp("started")
    config = JetSpecConfig.for_target(target, num_hidden_layers=2, block_size=4, taps=[0, 1], draft_vocab_size=200, markov_rank=8)
    formats.save(JetSpecHead.for_target(target, config, torch.arange(200)), folder)
    return folder


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"head__draft_vocab_size": 100}, "draft_vocab_size 200"),
        ({"head__taps": "[1]"}, "target_layer_ids"),
        ({"head__markov_rank": 4}, "markov"),
        ({"head__init": "random"}, "has no effect with start"),
    ],
    ids=lambda given: next(iter(given)) if isinstance(given, dict) else "",
)
def test_a_head_of_another_shape_cannot_start_this_one(train, started, tmp_path, settings, said):
    done = train(tmp_path / "run", prompts_file(tmp_path, 16), "--steps", "1", head__start=str(started), **settings)
    assert (done.code, said in done.err) == (2, True), done.err
