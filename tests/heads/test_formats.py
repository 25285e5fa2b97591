"""Heads on disk: written, read again, and refused where something is missing, strange or another target's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from paceline.errors import CheckpointMismatch
from paceline.heads import formats
from paceline.heads.jetspec import JetSpecHead
from paceline.targets.hf import HFTarget

from .. import tiny
from .small import random_head


def save(folder: Path, **changes: Any) -> JetSpecHead:
    head = random_head(tiny.target(), **changes)
    formats.save(head, folder, dtype=torch.float32, card={"evaluation": {}})
    return head


def edit(folder: Path, **changes: torch.Tensor | None) -> None:
    """Put tensors in, or take them out; `__` stands for a dot."""
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in changes.items():
        tensors.pop(name.replace("__", "."), None)
        if tensor is not None:
            tensors[name.replace("__", ".")] = tensor
    save_file(tensors, folder / "model.safetensors")


def refused(folder: Path, target: HFTarget | None = None) -> str:
    """The message, which must be one line with a remedy."""
    with pytest.raises(CheckpointMismatch) as caught:
        formats.load(folder, target or tiny.target())
    message = str(caught.value)
    assert "\n" not in message, message
    assert "; " in message, f"no remedy in: {message}"
    return message


@pytest.mark.parametrize(
    "changes", [{}, {"draft_vocab_size": None, "markov_rank": 0, "last_feature": False, "mask_token_id": 5}], ids=["everything", "plain"]
)
def test_a_saved_head_is_loaded_as_it_was(tmp_path, changes):
    head = save(tmp_path, **changes)
    again = formats.load(tmp_path, tiny.target())
    assert again.config == head.config
    assert again.state_dict().keys() == head.state_dict().keys()
    wrong = [name for name, tensor in again.state_dict().items() if not torch.equal(tensor, head.state_dict()[name])]
    assert (wrong, torch.equal(again.draft_vocab_ids, head.draft_vocab_ids)) == ([], True)


def test_a_loaded_head_has_the_targets_type_and_is_not_trained(tmp_path):
    save(tmp_path)
    head = formats.load(tmp_path, tiny.target())
    assert (head.dtype, any(p.requires_grad for p in head.parameters()), head.training) == (torch.float32, False, False)


def test_weights_are_saved_in_bfloat16_unless_told_otherwise(tmp_path):
    formats.save(random_head(tiny.target()), tmp_path)
    kinds = {t.dtype for name, t in load_file(tmp_path / "model.safetensors").items() if name not in ("d2t", "t2d")}
    assert (kinds, json.loads((tmp_path / "config.json").read_text())["dtype"]) == ({torch.bfloat16}, "bfloat16")


def test_the_maps_of_a_reduced_vocabulary_are_offsets_and_a_mask(tmp_path):
    head = save(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    ids = head.draft_vocab_ids
    assert torch.equal(torch.arange(48) + tensors["d2t"], ids), "row + d2t is not the target's id"
    assert torch.equal(tensors["t2d"].nonzero()[:, 0], ids), "t2d does not mark the target's ids"


def test_a_card_is_read_back(tmp_path):
    save(tmp_path)
    assert formats.read(tmp_path).card == {"evaluation": {}}


def test_a_head_can_be_saved_over_an_older_one(tmp_path):
    save(tmp_path, seed=1)
    head = save(tmp_path, seed=2)
    assert torch.equal(formats.read(tmp_path).tensors["fc.weight"], head.fc.weight)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["card.json", "config.json", "model.safetensors"]


def test_missing_tensors_are_named(tmp_path):
    save(tmp_path)
    edit(tmp_path, fc__weight=None, norm__weight=None)
    assert "lacks fc.weight, norm.weight" in refused(tmp_path)


def test_strange_tensors_are_named(tmp_path):
    save(tmp_path)
    edit(tmp_path, layers__0__self_attn__q_proj__bias=torch.zeros(32))
    assert "layers.0.self_attn.q_proj.bias" in refused(tmp_path)


def test_a_tensor_of_another_shape_is_named_with_both(tmp_path):
    save(tmp_path)
    edit(tmp_path, hidden_norm__weight=torch.ones(16))
    assert "hidden_norm.weight of the head has shape [16], and its config.json says [32]" in refused(tmp_path)


def test_a_reduced_vocabulary_without_its_map_is_refused(tmp_path):
    save(tmp_path)
    edit(tmp_path, d2t=None)
    assert "drafts 48 tokens and its map d2t is missing" in refused(tmp_path)


def test_a_map_that_leads_outside_the_vocabulary_is_refused(tmp_path):
    save(tmp_path)
    edit(tmp_path, d2t=torch.full((48,), 40))
    assert "outside the vocabulary" in refused(tmp_path)


@pytest.mark.parametrize("content", [b"", b"not safetensors", b"\x00" * 64], ids=["empty", "text", "zeros"])
def test_a_broken_weights_file_is_refused(tmp_path, content):
    save(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(content)
    assert "model.safetensors cannot be read" in refused(tmp_path)


def test_a_missing_weights_file_is_refused(tmp_path):
    save(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    assert "model.safetensors cannot be read" in refused(tmp_path)


@pytest.mark.parametrize(("content", "says"), [("{", "is no JSON"), ("[]", "is no JSON object"), ("{}", "neither dflash_config")])
def test_a_broken_configuration_is_refused(tmp_path, content, says):
    save(tmp_path)
    (tmp_path / "config.json").write_text(content)
    assert says in refused(tmp_path)


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    assert "name the folder of a head" in refused(tmp_path / "nothing")


def test_an_own_output_matrix_is_used_instead_of_the_targets(tmp_path):
    head = save(tmp_path)
    own = torch.randn(48, 32)
    edit(tmp_path, lm_head__weight=own)
    hidden = torch.randn(2, 32)
    assert torch.allclose(formats.load(tmp_path, tiny.target()).logits(hidden), hidden @ own.T)
    assert not torch.allclose(head.logits(hidden), hidden @ own.T)


def test_an_own_output_matrix_of_another_shape_is_refused(tmp_path):
    save(tmp_path)
    edit(tmp_path, lm_head__weight=torch.randn(61, 32))
    with pytest.raises(CheckpointMismatch, match=r"is \[61, 32\], and it drafts 48"):
        formats.load(tmp_path, tiny.target())


def test_the_mask_row_of_an_embedding_that_came_along_is_the_mask(tmp_path):
    head = save(tmp_path, mask_token_id=7)
    embedding = head.embed_weight.clone()
    embedding[7] = torch.randn(32)
    edit(tmp_path, embed_tokens__weight=embedding)
    slots = formats.load(tmp_path, tiny.target()).slots(torch.tensor([3]), 3)[0]
    assert torch.equal(slots, torch.stack([embedding[3], embedding[7], embedding[7]]))


def test_an_embedding_that_is_not_the_targets_is_refused(tmp_path):
    save(tmp_path)
    edit(tmp_path, embed_tokens__weight=torch.randn(61, 32))
    assert "brings an embedding that is not the target's" in refused(tmp_path)
