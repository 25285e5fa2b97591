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


def parts(cache: SlotCache, slots: list[int], sizes: list[int]) -> list[tuple[int, ...]]:
    """How many rows each sequence reads, by attention call, after these new rows."""
    none = torch.zeros(1, HEADS, sum(sizes), SIZE)
    return [part.ends for part in cache.step(slots, sizes).update(none, none, 0)[0].parts]


def test_slots_that_come_together_share_a_slab_and_a_call():
    cache = SlotCache()
    slots = [cache.open() for _ in range(4)]
    write(cache, slots, [[1, 2, 3], [4], [5, 6], [7]])
    for slot, size in zip(slots, (3, 1, 2, 1), strict=True):
        cache.commit(slot, range(size))
    assert parts(cache, slots, [1, 1, 1, 1]) == [(4, 2, 3, 2)]


@pytest.mark.parametrize(
    ("capacities", "shared"), [((100, 120, 180), 1), ((100, 300), 2), ((100, 190, 300), 2), ((64,) * 65, 2)], ids=lambda x: str(x)[:20]
)
def test_slots_of_unlike_needs_do_not_share_a_slab(capacities, shared):
    cache = SlotCache()
    slots = [cache.open(capacity) for capacity in capacities]
    write(cache, slots, [[1]] * len(slots))
    assert len({id(cache._slots[slot].slab) for slot in slots}) == shared


def test_a_slot_takes_a_free_row_that_is_there_rather_than_new_memory():
    cache = SlotCache()
    slots = [cache.open(200) for _ in range(2)]
    write(cache, slots, [[1], [2]])
    held = cache.nbytes
    cache.free(slots[0])
    again = cache.open(70)
    write(cache, [again], [[3]])
    assert (cache.nbytes, read(cache, again), read(cache, slots[1])) == (held, [3], [2])


def test_a_short_slot_does_not_take_the_row_of_a_very_long_one():
    cache = SlotCache()
    slots = [cache.open(2000) for _ in range(2)]
    write(cache, slots, [[1], [2]])
    cache.free(slots[0])
    short = cache.open(64)
    write(cache, [short], [[3]])
    assert cache._slots[short].slab.capacity == 64


def test_memory_comes_with_the_first_rows():
    cache = SlotCache()
    cache.free(cache.open(1000))
    assert cache.nbytes == 0


def test_rows_written_for_neighbours_are_read_by_their_own_slot():
    cache = SlotCache()
    slots = [cache.open() for _ in range(8)]
    for slot in range(8):
        write(cache, [slots[slot]], [[10 * slot + i for i in range(slot)]])
        cache.commit(slots[slot], range(slot))
    order = [5, 2, 7, 4, 0, 6, 1, 3]
    write(cache, [slots[i] for i in order], [[100 + i] for i in order])
    assert [read(cache, slots[i]) for i in range(8)] == [[*(10 * i + k for k in range(i)), 100 + i] for i in range(8)]


@pytest.mark.parametrize("sizes", [(1,) * 8, (3, 1, 2, 4, 1, 5, 2, 3)], ids=["single", "trees"])
def test_new_rows_of_a_shared_call_go_to_their_own_slots(sizes):
    cache = SlotCache()
    slots = [cache.open() for _ in range(8)]
    write(cache, slots, [[10 * slot + i for i in range(slot + 1)] for slot in slots])
    for slot in slots:
        cache.commit(slot, range(slot + 1))
    order = [5, 2, 7, 4, 0, 6, 1, 3]
    write(cache, [slots[i] for i in order], [[100 + 10 * i + k for k in range(sizes[i])] for i in order])
    for i in range(8):
        assert read(cache, slots[i]) == [*(10 * i + k for k in range(i + 1)), *(100 + 10 * i + k for k in range(sizes[i]))]


def test_gaps_large_trees_and_long_padding_get_calls_of_their_own():
    cache = SlotCache()
    slots = [cache.open(1500) for _ in range(4)]
    write(cache, slots, [list(range(rows)) for rows in (5, 1400, 7, 8)])
    for slot, rows in zip(slots, (5, 1400, 7, 8), strict=True):
        cache.commit(slot, range(rows))
    assert parts(cache, slots, [1, 1, 1, 1]) == [(6,), (1401,), (8, 9)], "five rows beside 1400 are too much padding"
    assert parts(cache, slots[2:], [1, 3]) == [(8, 11)], "small trees share"
    assert parts(cache, slots[2:], [17, 17]) == [(24,), (25,)], "large trees do not"
    assert parts(cache, [slots[0], slots[2]], [1, 1]) == [(6,), (8,)], "the slot between them is not asked"


def test_what_a_freed_slot_held_cannot_reach_its_neighbours():
    cache = SlotCache()
    slots = [cache.open() for _ in range(4)]
    write(cache, slots, [[1], [2], [float("inf")] * 4, [4]])  # the last two are neighbours
    for slot in slots:
        cache.commit(slot, [0])
    cache.free(slots[2])
    again = cache.open()
    write(cache, [slots[3]], [[5, 6]])
    cache.commit(slots[3], [0, 1])
    none = torch.zeros(1, HEADS, 2, SIZE)
    shared = cache.step([again, slots[3]], [1, 1]).update(none, none, 0)[0][0]
    assert shared.shape == (2, HEADS, 4, SIZE)
    assert bool(shared.isfinite().all()), f"the padding holds {shared[0, 0, :, 0].tolist()}"


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
