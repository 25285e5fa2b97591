"""Attention against a reference that is written out head by head in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from paceline.targets.attention import attend
from paceline.targets.step import Part, Segments

HEADS, KV_HEADS, SIZE, CACHED = 6, 2, 8, 5
CAP = 2.0


def reference(query, key, value, mask, scaling=None, softcap=None, sinks=None):
    """(heads, N, D) in float64; head h reads the keys of its group."""
    q, k, v = (x[0].double() for x in (query, key, value))
    scale = q.shape[-1] ** -0.5 if scaling is None else scaling
    out = torch.zeros(q.shape[0], q.shape[1], v.shape[-1], dtype=torch.float64)
    for head in range(q.shape[0]):
        group = head // (q.shape[0] // k.shape[0])
        for node in range(q.shape[1]):
            seen = [t for t in range(k.shape[1]) if mask[0, 0, node, t] == 0]
            scores = [float(q[head, node] @ k[group, t]) * scale for t in seen]
            if softcap is not None:
                scores = [softcap * math.tanh(s / softcap) for s in scores]
            weights = [math.exp(s) for s in scores]
            total = sum(weights) + (0 if sinks is None else math.exp(float(sinks[head])))
            out[head, node] = sum(w / total * v[group, t] for w, t in zip(weights, seen, strict=True))
    return out


def case(nodes: int, seed: int = 0):
    """Query, key, value and the mask of a comb: every node sees the cache, itself and every third node before it."""
    random = torch.Generator().manual_seed(seed)
    query = torch.randn(1, HEADS, nodes, SIZE, generator=random)
    key, value = (torch.randn(1, KV_HEADS, CACHED + nodes, SIZE, generator=random) for _ in range(2))
    mask = torch.full((1, 1, nodes, CACHED + nodes), torch.finfo(torch.float32).min)
    mask[..., :CACHED] = 0
    for node in range(nodes):
        mask[0, 0, node, [CACHED + i for i in range(node % 3, node + 1, 3)]] = 0
    return query, key, value, mask


def lone(nodes: int, rows: int, start: int = 0) -> Part:
    """One sequence with its new nodes from this place on."""
    return Part(slice(start, start + nodes), (rows,))


def attended(arrays, **settings) -> torch.Tensor:
    """What attention makes of one sequence."""
    query, key, value, mask = arrays
    one = [Segments([x], [lone(query.shape[2], key.shape[2])], {}) for x in (key, value)]
    return attend(None, query, *one, mask, **settings)[0]


def worst(got: torch.Tensor, want: torch.Tensor) -> float:
    """The largest difference of attention's result (1, N, heads, D) from the reference (heads, N, D)."""
    return float((got[0].transpose(0, 1).double() - want).abs().max())


SINKS = torch.tensor([0.5, -1.0, 2.0, 0.0, 1.0, -2.0])


@pytest.mark.parametrize("extra", [{}, {"softcap": CAP}, {"sinks": SINKS}, {"softcap": CAP, "sinks": SINKS}], ids=lambda e: "+".join(e))
@pytest.mark.parametrize("scaling", [None, 0.9])
@pytest.mark.parametrize("nodes", [1, 7, 64, 65])
def test_attention_equals_the_reference(nodes, scaling, extra):
    arrays = case(nodes)
    given = {"s_aux" if name == "sinks" else name: value for name, value in extra.items()}
    difference = worst(attended(arrays, scaling=scaling, **given), reference(*arrays, scaling=scaling, **extra))
    assert difference < 2e-6, f"{nodes} nodes, scaling {scaling}, {list(extra)}: differs by {difference}"


def test_the_settings_matter():
    arrays = case(7)
    plain = reference(*arrays)
    others = {
        "scaling": reference(*arrays, scaling=0.9),
        "softcap": reference(*arrays, softcap=CAP),
        "sinks": reference(*arrays, sinks=SINKS),
    }
    changes = {name: float((plain - other).abs().max()) for name, other in others.items()}
    assert min(changes.values()) > 1e-2, f"the cases above would not see a setting that is ignored: {changes}"


@pytest.mark.parametrize("extra", [{}, {"softcap": CAP}, {"s_aux": SINKS}], ids=lambda e: "+".join(e) or "plain")
def test_a_packed_batch_equals_each_sequence_alone(extra):
    cases = [case(n, seed) for seed, n in enumerate([3, 1, 70])]
    longest = max(c[3].shape[-1] for c in cases)
    far = torch.finfo(torch.float32).min
    mask = torch.cat([torch.nn.functional.pad(c[3], (0, longest - c[3].shape[-1]), value=far) for c in cases], 2)
    parts = [lone(3, CACHED + 3), lone(1, CACHED + 1, 3), lone(70, CACHED + 70, 4)]
    key, value = (Segments([c[i] for c in cases], parts, {}) for i in (1, 2))
    packed, _ = attend(None, torch.cat([c[0] for c in cases], 2), key, value, mask, **extra)
    alone = torch.cat([attended(c, **extra) for c in cases], 1)
    assert torch.allclose(packed, alone, atol=1e-6), f"differs by {float((packed - alone).abs().max())}"


@pytest.mark.parametrize("extra", [{}, {"softcap": CAP}, {"s_aux": SINKS}], ids=lambda e: "+".join(e) or "plain")
@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 1, 2), (4, 4, 4)], ids=str)
def test_sequences_that_share_a_call_equal_each_alone(extra, sizes):
    cases = [case(nodes, seed) for seed, nodes in enumerate((*sizes, 2))]
    ends = [CACHED + nodes for nodes in sizes]
    order = (2, 3, 0, 1)  # of the sequences in the forward; the last one, 3, has a call of its own
    firsts = {i: sum(cases[k][0].shape[2] for k in order[:place]) for place, i in enumerate(order)}
    mask = torch.full((1, 1, sum(sizes) + 2, CACHED + max(*sizes, 2)), torch.finfo(torch.float32).min)
    for i, (_, _, _, m) in enumerate(cases):
        mask[..., firsts[i] : firsts[i] + m.shape[2], : m.shape[3]] = m
    parts = [Part.several([firsts[i] for i in range(3)], sizes, ends), Part(slice(firsts[3], firsts[3] + 2), (CACHED + 2,))]
    shared = [torch.cat([nn.functional.pad(c[i], (0, 0, 0, max(ends) - c[i].shape[2])) for c in cases[:3]]) for i in (1, 2)]
    key, value = (Segments([x, cases[3][i]], parts, {}) for x, i in zip(shared, (1, 2), strict=True))
    got, _ = attend(None, torch.cat([cases[i][0] for i in order], 2), key, value, mask, **extra)
    alone = torch.cat([attended(cases[i], **extra) for i in order], 1)
    assert torch.allclose(got, alone, atol=1e-6), f"differs by {(got - alone).abs().amax((0, 2, 3)).tolist()}"


def test_a_lone_node_that_cannot_see_all_of_its_cache_keeps_its_mask():
    query, key, value, mask = case(1)
    mask[..., :2] = torch.finfo(torch.float32).min  # as a sliding window does
    difference = worst(attended((query, key, value, mask)), reference(query, key, value, mask))
    assert difference < 2e-6, f"differs by {difference}"


def test_layers_of_one_kind_share_what_is_made_of_the_mask():
    query, key, value, mask = case(7)
    masks: dict = {}
    for _ in range(3):
        attend(None, query, *(Segments([x], [lone(7, CACHED + 7)], masks) for x in (key, value)), mask)
    assert [len(kept) for kept in masks.values()] == [1]


def test_two_masks_of_one_forward_are_kept_apart():
    query, key, value, mask = case(7)
    narrow, masks = mask.clone(), {}
    narrow[..., :3] = torch.finfo(torch.float32).min
    for each in (mask, narrow):
        got, _ = attend(None, query, *(Segments([x], [lone(7, CACHED + 7)], masks) for x in (key, value)), each)
    difference = worst(got, reference(query, key, value, narrow))
    assert difference < 2e-6, f"the second kind of layer differs by {difference}"
