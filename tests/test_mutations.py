"""The tests are tested: five known bugs, each of which must turn the matrix red."""

from __future__ import annotations

import pytest
import torch

from paceline import engine
from paceline.rules import walk
from paceline.targets.kv import SlotCache
from paceline.tree import Tree

from . import matrix

pytestmark = pytest.mark.slow


def commit_keeps_the_first_rows_instead_of_the_path(patch):
    commit = SlotCache.commit
    patch.setattr(SlotCache, "commit", lambda self, slot, path: commit(self, slot, range(len(path))))


def one_rejected_row_stays(patch):
    commit = SlotCache.commit

    def keep_one_more(self, slot, path):
        rejected = [row for row in range(self.scratch(slot)) if row not in path]
        commit(self, slot, [*path, *rejected[:1]])

    patch.setattr(SlotCache, "commit", keep_one_more)
    patch.setattr(engine, "_check_invariants", lambda *arguments: None)  # which would see it at once


def causal_mask_instead_of_ancestors(patch):
    patch.setattr(Tree, "ancestors", property(lambda self: torch.ones(len(self), len(self), dtype=torch.bool).tril()))


def positions_by_index_instead_of_depth(patch):
    patch.setattr(Tree, "depth", property(lambda self: tuple(range(len(self)))))


def next_token_read_at_the_root(patch):
    right = walk.walk

    def wrong(draft, target_probs, decide, rng):
        verdict = right(draft, target_probs, decide, rng)
        return walk.Verdict(verdict.path, target_probs.draw(0, rng))

    patch.setattr(walk, "walk", wrong)


BUGS = [
    commit_keeps_the_first_rows_instead_of_the_path,
    one_rejected_row_stays,
    causal_mask_instead_of_ancestors,
    positions_by_index_instead_of_depth,
    next_token_read_at_the_root,
]


@pytest.mark.parametrize("row", ["planted", "draft_model", "lookup+draft_model", "jetspec"])
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_known_bug_turns_the_matrix_red(monkeypatch, bug, row):
    bug(monkeypatch)
    assert matrix.compact(row), f"no cell of the compact matrix failed for {row} with this bug: {bug.__name__}"


@pytest.mark.parametrize("row", matrix.ROWS)
def test_without_a_bug_the_compact_matrix_is_green(row):
    assert matrix.compact(row) == []
