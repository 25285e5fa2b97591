"""The cache, filled with numbers that name their row: key row 7 of layer 2 is 2007, its value -2007."""

from __future__ import annotations

import pytest
import torch

from paceline import engine
from paceline.drafters.none import NoDrafter
from paceline.rules.match import match
from paceline.targets.kv import SlotCache

from .. import matrix, tiny

LAYERS, HEADS, SIZE = 3, 2, 4


def write(cache: SlotCache, slots: list[int], rows: list[list[int]]) -> None:
    """One forward that writes these rows to scratch, in every layer."""
    step = cache.step(slots, [len(r) for r in rows])
    flat = torch.tensor([float(x) for r in rows for x in r])
    for layer in range(LAYERS):
        new = (flat + 1000 * layer)[None, None, :, None].expand(1, HEADS, -1, SIZE)
        step.update(new, -new, layer)
    step.close()


def read(cache: SlotCache, slot: int) -> list[int]:
    """All rows of a slot, committed and scratch; they must agree in every layer, head and column, in keys and values."""
    step, none = cache.step([slot], [0]), torch.empty(1, HEADS, 0, SIZE)
    pairs = [step.update(none, none, layer) for layer in range(LAYERS)]
    rows = (pairs[0][0][0][0, 0, :, 0]).tolist()
    for layer, ((key,), (value,)) in enumerate(pairs):
        want = (torch.tensor(rows) + 1000 * layer)[None, None, :, None].expand(1, HEADS, -1, SIZE)
        assert torch.equal(key, want), f"keys of layer {layer}: {key[0, :, :, 0].tolist()}, not {rows} and {1000 * layer} more"
        assert torch.equal(value, -want), f"values of layer {layer}: {value[0, :, :, 0].tolist()}"
    return [int(r) for r in rows]


def opened(committed: int, capacity: int = 1) -> tuple[SlotCache, int]:
    """A cache with one slot that holds rows 0, 1, ..."""
    cache = SlotCache()
    slot = cache.open(capacity)
    if committed:
        write(cache, [slot], [list(range(committed))])
        cache.commit(slot, range(committed))
    return cache, slot


@pytest.mark.parametrize("path", [[0, 1, 2, 3, 4], [0, 1], [0, 2, 4], [0, 1, 4], [1, 2], [2], [0, 2, 3, 4]])
def test_commit_keeps_the_rows_of_the_path_in_order(path):
    cache, slot = opened(3)
    write(cache, [slot], [[10, 11, 12, 13, 14]])
    cache.commit(slot, path)
    assert read(cache, slot) == [0, 1, 2, *(10 + node for node in path)]


def test_the_rows_after_a_commit_follow_the_path():
    cache, slot = opened(2)
    write(cache, [slot], [[10, 11, 12]])
    cache.commit(slot, [0, 2])
    write(cache, [slot], [[20]])
    assert read(cache, slot) == [0, 1, 10, 12, 20]


def test_commit_of_nothing_drops_the_scratch_rows():
    cache, slot = opened(3)
    write(cache, [slot], [[10, 11]])
    cache.commit(slot, [])
    assert (cache.length(slot), cache.scratch(slot), read(cache, slot)) == (3, 0, [0, 1, 2])


def test_commit_refuses_rows_that_are_not_there():
    cache, slot = opened(3)
    write(cache, [slot], [[10, 11]])
    with pytest.raises(AssertionError, match=r"path \[0, 2\] is outside the 2 scratch rows"):
        cache.commit(slot, [0, 2])


def test_scratch_rows_pile_up_until_a_commit():
    cache, slot = opened(1)
    write(cache, [slot], [[10, 11]])
    write(cache, [slot], [[12]])
    assert (cache.length(slot), cache.scratch(slot), read(cache, slot)) == (1, 3, [0, 10, 11, 12])


@pytest.mark.parametrize("committed", [0, 60, 64])
def test_growth_keeps_committed_and_scratch_rows(committed):
    cache, slot = opened(committed)
    write(cache, [slot], [[100, 101, 102]])
    write(cache, [slot], [list(range(200, 300))])  # beyond the 64 rows of the first buffer
    assert read(cache, slot) == [*range(committed), 100, 101, 102, *range(200, 300)]


def test_growth_is_by_half_so_that_a_long_text_is_not_copied_for_every_token():
    cache, slot = opened(640)
    sizes = set()
    for row in range(300):
        write(cache, [slot], [[row]])
        cache.commit(slot, [0])
        sizes.add(cache.nbytes)
    assert len(sizes) <= 2, f"{len(sizes)} sizes of the buffers while 300 tokens came: {sorted(sizes)}"


def test_a_slot_opened_for_its_tokens_does_not_grow():
    cache, slot = opened(1, capacity=100)
    before = cache.nbytes
    write(cache, [slot], [list(range(99))])
    assert cache.nbytes == before


@pytest.mark.parametrize("length", [0, 2, 5])
def test_truncate_drops_scratch_and_the_last_rows(length):
    cache, slot = opened(5)
    write(cache, [slot], [[10, 11]])
    cache.truncate(slot, length)
    assert (cache.length(slot), cache.scratch(slot), read(cache, slot)) == (length, 0, list(range(length)))


def test_truncate_to_more_than_there_is_is_refused():
    cache, slot = opened(5)
    with pytest.raises(AssertionError, match="cannot truncate 5 tokens to 6"):
        cache.truncate(slot, 6)


def test_ragged_rows_of_one_forward_go_to_their_own_slots():
    cache = SlotCache()
    slots = [cache.open() for _ in range(3)]
    write(cache, slots, [[1, 2], [3], [4, 5, 6]])
    cache.commit(slots[2], [0, 2])
    assert [read(cache, s) for s in slots] == [[1, 2], [3], [4, 6]]


def test_a_freed_slot_is_used_again_and_empty():
    cache = SlotCache()
    slots = [cache.open() for _ in range(3)]
    write(cache, slots, [[1], [2], [3]])
    cache.free(slots[1])
    again = cache.open()
    assert (again, cache.length(again), cache.scratch(again)) == (slots[1], 0, 0)


def test_freeing_one_slot_leaves_the_others():
    cache = SlotCache()
    slots = [cache.open() for _ in range(2)]
    write(cache, slots, [[1, 2], [3]])
    cache.free(slots[0])
    assert read(cache, slots[1]) == [3]


def test_bytes_are_those_of_the_buffers():
    cache, _ = opened(1, capacity=64)
    assert cache.nbytes == 2 * LAYERS * HEADS * 64 * SIZE * 4


def test_free_gives_all_bytes_back():
    cache, slot = opened(100)
    cache.free(slot)
    assert cache.nbytes == 0


def test_memory_is_flat_over_200_requests():
    target, held = tiny.target(), set()
    for i in range(200):
        seq = matrix.request([i % tiny.VOCAB, 5], 2)
        for _ in engine.rounds(target, NoDrafter(), match, [seq]):
            held.add((seq.slot, target.cache.nbytes))
        engine.release(target, seq)
    assert (len(held), target.cache.nbytes) == (1, 0), f"slots and bytes {sorted(held)}, at the end {target.cache.nbytes}"
