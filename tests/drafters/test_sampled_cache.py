"""The draft model's own cache under sampled trees: what was accepted is not run again, and leaves are never run."""

from __future__ import annotations

import pytest

from paceline import engine
from paceline.draft import Siblings
from paceline.drafters.draft_model import DraftModelDrafter
from paceline.drafters.shapes import Shape, chain, complete
from paceline.rules.match import match

from . import table

DRAWN = [Siblings.IID, Siblings.WITHOUT_REPLACEMENT, Siblings.TOP_AND_DRAW, Siblings.FIXED]
SHAPES = {"2x3": complete(2, 3), "3x1": complete(3, 1), "chain": chain(3), "bush": Shape((-1, 0, 0, 0, 1, 1, 3, 4))}
every_kind = pytest.mark.parametrize("siblings", DRAWN, ids=lambda kind: kind.value)
every_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


def run(siblings, shape, seqs, vocab: int = 4):
    """The rounds of a target and a draft model with the same law, each with the draft forwards that went before it."""
    target, model = table.model(vocab, 1), table.model(vocab, 1)
    drafter = DraftModelDrafter(model, vocab, siblings=siblings, shape=shape)
    before = 0
    for round_ in engine.rounds(target, drafter, match, seqs):
        yield round_, model.forwards[before:], model.cache.slots[drafter._states[round_.sequence.slot].slot]
        before = len(model.forwards)


def ran(tree, node) -> bool:
    """Whether the draft model ran this node, or one that is equal to it."""
    path = [tree.tokens[n] for n in tree.path(node)]
    return any(tree.children(n) for n in range(len(tree)) if [tree.tokens[m] for m in tree.path(n)] == path)


@every_kind
@every_shape
def test_only_what_is_new_is_fed(siblings, shape):
    fed, new, kept = [], [], set()
    for round_, forwards, _ in run(siblings, shape, [table.request(120, seed=3)], vocab=7):
        if forwards:
            fed.append(forwards[0][0])
        kept.add(len(round_.path) - 1)
        new.append(1 if ran(round_.draft.tree, round_.path[-1]) else 2)  # the next token, and the last accepted one
    assert fed[1:] == new[: len(fed) - 1], f"tokens fed {fed[1:]}, of which new {new}"
    assert kept >= {0, shape.depth}, f"accepted {kept}: nothing or everything was never tried"


@every_kind
@every_shape
def test_the_cache_holds_the_sequences_own_tokens(siblings, shape):
    for round_, _, slot in run(siblings, shape, [table.request(60, seed=4)]):
        tokens = round_.sequence.tokens
        assert slot.tokens == tokens[: len(slot.tokens)], f"the draft cache holds {slot.tokens}, the text is {tokens}"


@every_shape
def test_a_level_is_one_forward_and_leaves_are_not_run(shape):
    inner = [sum(1 for n in level if shape.children[n]) for level in levels(shape)]
    for round_, forwards, _ in run(Siblings.IID, shape, [table.request(60, seed=5)]):
        if round_.sequence.room + len(round_.tokens) > shape.depth:
            assert [sizes[0] for sizes in forwards[1:]] == [n for n in inner[1:] if n], f"{shape}: nodes per forward {forwards}"


def levels(shape) -> list[list[int]]:
    """The nodes of each depth."""
    found = [[0]]
    while below := [c for n in found[-1] for c in shape.children[n]]:
        found.append(below)
    return found


def test_all_sequences_share_the_forward_of_a_level():
    shape, rooms = complete(2, 3), (60, 3, 2, 1)
    _, forwards, _ = next(run(Siblings.IID, shape, [table.request(room, seed=room) for room in rooms]))
    assert [len(sizes) for sizes in forwards] == [3, 2, 1], f"sequences per forward, for rooms of {rooms}: {forwards}"
    assert [sizes[0] for sizes in forwards[1:]] == [2, 4]


@every_kind
def test_a_sequence_that_goes_on_in_the_slot_of_another_starts_clean(siblings):
    target, model = table.model(4, 1), table.model(4, 1)
    drafter = DraftModelDrafter(model, 4, siblings=siblings, shape=complete(2, 2))
    for seed in (1, 2):
        seq = table.request(20, seed=seed)
        alone = table.request(20, seed=seed)
        engine.generate(target, drafter, match, [seq])
        fresh = DraftModelDrafter(table.model(4, 1), 4, siblings=siblings, shape=complete(2, 2))
        engine.generate(table.model(4, 1), fresh, match, [alone])
        assert seq.output == alone.output
