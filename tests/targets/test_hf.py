"""The Transformers target: masks that a reader can check, and forwards that must agree however the work is cut.

The tree of the masks, after a cache of length 2 or 3:

    0 ─┬─ 1 ─── 3
       └─ 2
"""

from __future__ import annotations

import pytest
import torch

from paceline.targets import hf
from paceline.targets.hf import HFTarget
from paceline.targets.join import join_linears
from paceline.targets.pack import pack
from paceline.tree import Tree

from .. import tiny

TREE = Tree((5, 6, 7, 8), (-1, 0, 0, 1))
PROMPTS = [[3, 9, 27], [(7 * i + 2) % tiny.VOCAB for i in range(17)], [11]]
TREES = [Tree((5, 6, 7, 8, 9), (-1, 0, 0, 1, 2)), Tree((4, 9, 9, 1, 2, 3, 17), (-1, 0, 1, 0, 3, 4, 2)), Tree.chain([40])]
FAMILIES = ["llama", "qwen2", "mistral", "gemma2"]  # full; mixed; one window for all layers; mixed with soft capping
CLOSE = 1e-4  # logits of these models are of size 10


def drawn(mask: torch.Tensor) -> list[str]:
    """One string per node: # where it sees a key."""
    return ["".join("#" if x == 0 else "." for x in row) for row in mask[0, 0].tolist()]


def windowed(window: int | None) -> HFTarget:
    return HFTarget(tiny.build(tiny.config("mistral", sliding_window=window)))


def prefilled(family: str, prompts=PROMPTS) -> tuple[HFTarget, list[int]]:
    target = tiny.target(family)
    slots = [target.cache.open() for _ in prompts]
    target.prefill(slots, prompts)
    return target, slots


def same(got: torch.Tensor, want: torch.Tensor, what: str) -> None:
    assert got.shape == want.shape, f"{what}: shape {tuple(got.shape)}, not {tuple(want.shape)}"
    difference = float((got - want).detach().abs().max())
    assert difference < CLOSE, f"{what}: differs by up to {difference}, values up to {float(want.abs().max())}"


MASKS = {
    "the whole tree after two tokens": ([TREE], [0], [2], ["###...", "####..", "###.#.", "####.#"]),
    "an empty cache": ([TREE], [0], [0], ["#...", "##..", "#.#.", "##.#"]),
    "two nodes in scratch already": ([TREE], [2], [2], ["###.#.", "####.#"]),
    "two sequences": ([TREE, Tree.chain([1, 2])], [0, 0], [2, 1], ["###...", "####..", "###.#.", "####.#", "##....", "###..."]),
}


@pytest.mark.parametrize(("trees", "starts", "lengths", "rows"), MASKS.values(), ids=MASKS)
def test_a_node_sees_the_cache_and_its_ancestors(trees, starts, lengths, rows, target):
    got = drawn(target._attention_mask(trees, starts, lengths))
    assert got == rows, "\n".join(got)


WINDOWS = {
    # the root stands at position 3 and sees 1, 2, 3; its children at 4 see 2, 3, 4; the last node at 5 sees 3, 4, 5
    "3": (3, 0, 3, [".###...", "..###..", "..##.#.", "...##.#"]),
    "2": (2, 0, 3, ["..##...", "...##..", "...#.#.", "....#.#"]),
    "1": (1, 0, 3, ["...#...", "....#..", ".....#.", "......#"]),
    "3, two nodes in scratch": (3, 2, 3, ["..##.#.", "...##.#"]),
    "wide": (9, 0, 3, ["####...", "#####..", "####.#.", "#####.#"]),
}


@pytest.mark.parametrize(("window", "start", "length", "rows"), WINDOWS.values(), ids=WINDOWS)
def test_a_sliding_window_counts_positions_by_depth(window, start, length, rows):
    got = drawn(windowed(window)._attention_mask([TREE], [start], [length]))
    assert got == rows, "\n".join(got)


def test_each_layer_type_has_its_own_mask():
    masks = HFTarget(tiny.build(tiny.config("qwen2", sliding_window=2)))._attention_mask([TREE], [0], [3])
    got = {kind: drawn(mask) for kind, mask in masks.items()}
    assert got == {"full_attention": WINDOWS["wide"][3], "sliding_attention": WINDOWS["2"][3]}


def test_positions_are_cached_length_plus_depth(monkeypatch):
    target, slots = prefilled("llama")
    seen, full = [], target.full
    monkeypatch.setattr(target, "full", lambda **arguments: seen.append(arguments["position_ids"].tolist()) or full(**arguments))
    target.verify(TREES, slots)
    assert seen == [[[3, 4, 4, 5, 5, 17, 18, 19, 18, 19, 20, 20, 1]]]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("cut", [1, 3, 6])
def test_verifying_a_tree_in_two_parts_equals_the_whole(family, cut):
    tree, (target, slots) = TREES[1], prefilled(family, PROMPTS[1:2])
    whole = target.verify([tree], slots).logits
    target.cache.commit(slots[0], [])
    first = target.verify([Tree(tree.tokens[:cut], tree.parents[:cut])], slots)
    rest = target.verify([tree], slots)
    same(torch.cat([first.logits, rest.logits]), whole, f"{family}, cut after {cut} nodes")


def test_nodes_in_scratch_are_not_run_again(monkeypatch):
    target, slots = prefilled("llama")
    ran, full = [], target.full
    monkeypatch.setattr(target, "full", lambda **arguments: ran.append(arguments["input_ids"].tolist()) or full(**arguments))
    target.verify([Tree(t.tokens[:1], (-1,)) for t in TREES[:2]], slots[:2])
    sizes = target.verify(TREES, slots).sizes
    assert (ran[1], sizes) == ([[6, 7, 8, 9, 9, 9, 1, 2, 3, 17, 40]], [4, 6, 1])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_packed_verify_equals_each_sequence_alone(family):
    target, slots = prefilled(family)
    out = target.verify(TREES, slots, [0, 1])
    for i, (prompt, tree) in enumerate(zip(PROMPTS, TREES, strict=True)):
        alone_target, alone = prefilled(family, [prompt])
        want = alone_target.verify([tree], alone, [0, 1])
        same(out.logits[out.span(i)], want.logits, f"{family}, logits of sequence {i}")
        same(out.features[out.span(i)], want.features, f"{family}, features of sequence {i}")


@pytest.mark.parametrize("family", FAMILIES)
def test_each_node_of_a_tree_has_the_logits_of_its_own_path(family):
    (target, slots), tree = prefilled(family, PROMPTS[1:2]), TREES[1]
    rows = target.verify([tree], slots).logits
    for node in range(len(tree)):
        path = [tree.tokens[n] for n in tree.path(node)]
        want = tiny.plain(family)(torch.tensor([[*PROMPTS[1], *path]])).logits[0, -1]
        same(rows[node], want, f"{family}, node {node} with path {path}")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_read_in_chunks_of_five_equals_one_chunk(family, monkeypatch):
    prompts = [PROMPTS[0], PROMPTS[1], [8] * 7]
    whole, chunked = tiny.target(family), tiny.target(family)
    slots = [[t.cache.open() for _ in prompts] for t in (whole, chunked)]
    want = whole.prefill(slots[0], prompts, [0, 1])
    monkeypatch.setattr(hf, "PREFILL_CHUNK", 5)
    got = chunked.prefill(slots[1], prompts, [0, 1])
    same(torch.cat(got), torch.cat(want), f"{family}, features")
    same(chunked.verify(TREES, slots[1]).logits, whole.verify(TREES, slots[0]).logits, f"{family}, logits after the prompt")


def test_a_chunk_holds_at_most_its_tokens_and_fills_up(monkeypatch):
    target = tiny.target()
    sizes, base = [], target.base
    monkeypatch.setattr(hf, "PREFILL_CHUNK", 5)
    monkeypatch.setattr(target, "base", lambda **arguments: sizes.append(arguments["input_ids"].shape[1]) or base(**arguments))
    target.prefill([target.cache.open() for _ in range(3)], [[1] * 3, [2] * 8, [3] * 2])
    assert sizes == [5, 5, 3]


def test_prefill_commits_every_token():
    target, slots = prefilled("llama")
    assert [(target.cache.length(s), target.cache.scratch(s)) for s in slots] == [(3, 0), (17, 0), (1, 0)]


def plain_features(family: str, tokens: list[int]) -> torch.Tensor:
    """(T, 2 H): the outputs of both layers of the original model, the last one before the final norm, by a hook."""
    model, last = tiny.plain(family), []
    hook = hf._decoder_layers(model, 2)[1].register_forward_hook(lambda _m, _a, out: last.append(out[0] if isinstance(out, tuple) else out))
    with torch.no_grad():
        states = model(torch.tensor([tokens]), output_hidden_states=True).hidden_states
    hook.remove()
    return torch.cat([states[1][0], last[0][0]], -1)


@pytest.mark.parametrize("family", FAMILIES)
def test_features_of_a_prompt_are_those_of_the_plain_model(family):
    target = tiny.target(family)
    (got,) = target.prefill([target.cache.open()], [PROMPTS[1]], [0, 1])
    same(got, plain_features(family, PROMPTS[1]), f"{family}, layers 0 and 1")


@pytest.mark.parametrize("family", FAMILIES)
def test_features_of_a_node_are_those_of_its_own_path(family):
    (target, slots), tree = prefilled(family, PROMPTS[1:2]), TREES[1]
    got = target.verify([tree], slots, [0, 1]).features
    for node in range(len(tree)):
        path = [tree.tokens[n] for n in tree.path(node)]
        same(got[node], plain_features(family, [*PROMPTS[1], *path])[-1], f"{family}, node {node} with path {path}")


def test_features_come_in_the_order_in_which_layers_are_named():
    target, width = tiny.target(), 32
    slots = [target.cache.open() for _ in range(2)]
    (forth,) = target.prefill(slots[:1], [PROMPTS[0]], [0, 1])
    (back,) = target.prefill(slots[1:], [PROMPTS[0]], [1, 0])
    same(torch.cat([back[:, width:], back[:, :width]], -1), forth, "layers 1, 0 against layers 0, 1")


def test_no_hook_stays_behind():
    target, slots = prefilled("llama")
    target.verify(TREES, slots, [0, 1])
    assert [len(layer._forward_hooks) for layer in target.decoder_layers] == [0, 0]


def test_without_named_layers_there_are_no_features():
    target = tiny.target()
    slot = target.cache.open()
    assert (target.prefill([slot], [[1, 2]]), target.verify([TREE], [slot]).features) == (None, None)


def test_products_are_those_of_one_layer_each_with_all_rows():
    target, seen = HFTarget(tiny.build(tiny.config("llama"))), []
    for name, module in target.model.named_modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(lambda m, given, out, name=name: seen.append((name, given[0].shape[:-1].numel())))
    assert len(target.multiply(3, target.num_layers + 1)) == len(seen) == 7
    assert all(".layers.1." in name and rows == 3 for name, rows in seen)


def test_products_of_packed_layers_are_those_that_are_left():
    """Queries, keys and values are one product then, gate and up another."""
    model = pack(join_linears(tiny.build(tiny.config("llama"))), torch.float32)
    assert len(HFTarget(model).multiply(2, 0)) == 4
