"""Slots that start with the last context row."""

from __future__ import annotations

import torch

from paceline.heads.jetspec import JetSpecHead

from .small import config, features, kept_ids, random_head
from .test_jetspec import TOKENS, close, decoded, of, trained


def test_every_slot_starts_with_the_last_row_in_its_own_way():
    head = random_head(of())
    anchor, row = torch.tensor([7]), torch.randn(1, head.config.hidden_size)
    plain, block = head.slots(anchor, 3), head.slots(anchor, 3, row)
    parts = head.last_proj.weight.view(head.config.block_size, -1, head.config.hidden_size)
    for slot in range(3):
        close(block[0, slot] - plain[0, slot], parts[slot] @ row[0], f"slot {slot}")


def test_a_new_head_does_not_read_the_last_row_yet():
    head = JetSpecHead.for_target(of(), config(of()), kept_ids(config(of())))
    anchor, row = torch.tensor([7]), torch.randn(1, head.config.hidden_size)
    assert torch.equal(head.slots(anchor, 3, row), head.slots(anchor, 3))


def test_an_anchor_at_the_beginning_has_no_row_before_it():
    head = random_head(of())
    rows = features(of(), TOKENS, head.config.target_layer_ids)
    close(decoded(head, rows, 0), trained(head, 2 * rows)[0], "what comes later changes nothing")
