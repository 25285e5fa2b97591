"""A head made ready for decoding drafts the same, only quicker, and leaves its target whole."""

from __future__ import annotations

import copy

import pytest
import torch

from paceline.errors import CheckpointMismatch, InvalidRequest
from paceline.heads import formats
from paceline.heads.borrow import output_layer, output_weight
from paceline.heads.decode import draft_seconds, quicken, ready_head
from paceline.heads.jetspec import Context
from paceline.targets.hf import HFTarget
from paceline.targets.pack import pack

from .. import tiny
from .small import features, random_head

TOKENS = list(range(3, 20))


def made(tied: bool, packed: bool) -> HFTarget:
    model = tiny.build(tiny.config("llama", tie_word_embeddings=tied), 5)
    return HFTarget(pack(model.bfloat16().float(), torch.float32) if packed else model.bfloat16().float())


@torch.no_grad()
def logits(head, rows: torch.Tensor) -> torch.Tensor:
    context = Context()
    fused = head.fuse(rows)
    context.append(head.context_kv(fused, torch.arange(len(rows))), fused[-1])
    return head.draft(torch.tensor([4]), [context])[0]


@pytest.mark.parametrize("size", [48, None], ids=["reduced", "whole"])
@pytest.mark.parametrize("packed", [True, False], ids=["packed", "plain"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_a_quickened_head_drafts_the_same(tied, packed, size):
    target = made(tied, packed)
    head = random_head(target, draft_vocab_size=size)
    rows = features(target, TOKENS, head.config.target_layer_ids)
    want = logits(head, rows)
    got = logits(quicken(head, target), rows)
    worst = float((got - want).abs().max())
    assert worst < 1e-4, f"logits are off by {worst:.1e}"


@pytest.mark.parametrize("size", [48, None], ids=["reduced", "whole"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_the_target_keeps_its_weights(tied, size):
    target = made(tied, False)
    before = copy.deepcopy(target.model.state_dict())
    quicken(random_head(target, draft_vocab_size=size), target)
    wrong = [name for name, tensor in target.model.state_dict().items() if not torch.equal(tensor, before[name])]
    assert wrong == [], f"these are changed: {wrong}"


def test_a_quickened_head_holds_no_plain_linear_weight():
    target = made(True, True)
    head = quicken(random_head(target), target)
    plain = [name for name, module in head.named_modules() if type(module) is torch.nn.Linear]
    assert (plain, head.output_weight.numel()) == ([], 0)


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "plain"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_the_output_matrix_is_found_however_it_is_held(tied, packed):
    plain = made(tied, False)
    worst = float((output_weight(made(tied, packed)) - plain.model.get_output_embeddings().weight).detach().abs().max())
    assert worst == 0, f"off by {worst}"


def test_an_output_layer_with_a_bias_is_not_borrowed_as_it_is():
    target = made(False, False)
    target.model.lm_head.bias = torch.nn.Parameter(torch.ones(tiny.VOCAB))
    assert output_layer(target) is None


def test_a_folder_is_read_once_per_target(tmp_path):
    target = tiny.target()
    formats.save(random_head(target), tmp_path)
    first = ready_head(target, tmp_path)
    assert ready_head(target, str(tmp_path)) is first
    assert ready_head(tiny.target(), tmp_path) is not first


def test_without_a_shipped_head_the_error_says_how_to_train_one():
    with pytest.raises(InvalidRequest, match=r"--head DIR .*paceline train jetspec --model tiny"):
        ready_head(tiny.target(name="tiny"), None)


@pytest.mark.parametrize("name", ["", "..", "../drafters", "owner/name"])
def test_a_targets_name_leads_to_no_other_folder(name):
    with pytest.raises(InvalidRequest, match="no JetSpec head is shipped"):
        ready_head(tiny.target(name=name), None)


def test_a_folder_without_a_head_is_refused_by_name(tmp_path):
    with pytest.raises(CheckpointMismatch, match=r"holds no head: it has no config\.json"):
        ready_head(tiny.target(), tmp_path)


def test_a_head_object_of_another_target_is_refused():
    with pytest.raises(CheckpointMismatch, match="does not belong to llama"):
        ready_head(tiny.target(), random_head(HFTarget(tiny.build(tiny.config("llama"), 77))))


def test_the_time_of_a_draft_is_measured_once_for_each_number_of_sequences():
    head = random_head(tiny.target())
    first = [draft_seconds(head, count) for count in (1, 4)]
    assert all(0 < seconds < 5 for seconds in first)
    assert [draft_seconds(head), draft_seconds(head, 4)] == first
