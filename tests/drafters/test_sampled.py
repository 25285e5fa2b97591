"""Trees drawn into a shape: which children a node gets, and with which probability. No sampling: all outcomes are enumerated."""

from __future__ import annotations

from collections import defaultdict

import pytest
import torch

from paceline.draft import Siblings
from paceline.drafters.draft_model import DraftModelDrafter
from paceline.drafters.sampled import draw, stated
from paceline.drafters.shapes import Shape, chain, complete
from paceline.sampling import Random, truncate

from .. import matrix, tiny
from ..rules.exact import outcomes
from . import table
from .small import LONG, SHORT, draft, logits, small

IID, WITHOUT, TOP = Siblings.IID, Siblings.WITHOUT_REPLACEMENT, Siblings.TOP_AND_DRAW
DRAWN = pytest.mark.parametrize("siblings", [IID, WITHOUT, TOP], ids=lambda kind: kind.value)
EXACT = 1e-12
BUSH = Shape((-1, 0, 0, 1, 1))  # two children, and two below the first


def proposed(rng, siblings, shape, *, model=None, seq=None):
    """One draft of a new drafter, with these random choices."""
    seq = seq or table.request()
    seq.slot, seq.rng = 0, rng
    model = model or table.model(3, 1)
    (made,) = DraftModelDrafter(model, model.vocab_size, siblings=siblings, shape=shape).propose([seq])
    return made


def chance(law: torch.Tensor, tokens, siblings) -> float:
    """The probability that the children of a node are these, in this order."""
    left, product = law.clone(), 1.0
    fixed = len(tokens) - 1 if siblings is TOP else 0
    for i, token in enumerate(tokens):
        product *= float(left.argmax() == token) if i < fixed else float(left[token] / left.sum())
        left[token] = left[token] if siblings is IID else 0.0
    return product


SETTINGS = {"plain": {}, "warm": {"temperature": 1.7}, "top 2": {"top_k": 2}, "penalised": {"presence_penalty": 1.5, "temperature": 0.6}}


@DRAWN
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_a_tree_comes_as_often_as_the_draft_models_law_says(siblings, settings):
    model, seq = table.model(3, 1), table.request(**settings)
    seen = defaultdict(float)
    for made, prob in outcomes(lambda rng: proposed(rng, siblings, BUSH, model=table.TableModel(model.logits), seq=seq)):
        seen[made.tree] += prob

    def law(path):
        row = model.logits((*seq.tokens, *path)) - torch.tensor([seq.params.presence_penalty * (t in path) for t in range(3)])
        return torch.softmax(truncate(row, seq.params), -1)

    for tree, prob in seen.items():
        want = 1.0
        for node in range(len(tree)):
            tokens = [tree.tokens[c] for c in tree.children(node)]
            want *= chance(law([tree.tokens[n] for n in tree.path(node)[1:]]), tokens, siblings)
        assert prob == pytest.approx(want, abs=EXACT), f"{tree} comes with {prob}, not {want}"
    assert sum(seen.values()) == pytest.approx(1, abs=EXACT)


@DRAWN
@pytest.mark.parametrize(("dtype", "exact"), [(torch.float64, EXACT), (torch.float32, 1e-6)], ids=["float64", "half precision"])
def test_the_stated_law_is_the_law_of_the_draws(siblings, dtype, exact):
    wide = table.model(3, 1)
    model = table.TableModel(lambda text: wide.logits(text).to(dtype))
    seen, laws = defaultdict(float), {}
    for made, prob in outcomes(lambda rng: proposed(rng, siblings, complete(2, 1), model=table.TableModel(model.logits))):
        seen[made.tree.tokens[1:]] += prob
        laws[made.tree.tokens[1:]] = made.probs(0)
    assert laws[made.tree.tokens[1:]].dtype == dtype
    for tokens, prob in seen.items():
        assert prob == pytest.approx(chance(laws[tokens], tokens, siblings), abs=exact), f"children {tokens}"


def test_only_nodes_with_children_have_a_law():
    made = proposed(Random(0), WITHOUT, BUSH)
    assert made.rows == (0, 1, -1, -1, -1)
    assert made.logits.shape == (2, 3)


# which children


def test_draws_without_replacement_differ():
    draws = [tuple(draw(torch.tensor([0.9, 0.06, 0.04]), 3, WITHOUT, Random(seed))) for seed in range(50)]
    assert {tuple(sorted(d)) for d in draws} == {(0, 1, 2)}


def test_independent_draws_keep_their_duplicates():
    made = [proposed(Random(seed), IID, complete(3, 1)).tree for seed in range(20)]
    assert any(len(set(t.tokens[1:])) < 3 for t in made), "of 20 times three draws from three tokens none had a duplicate"
    assert {t.parents for t in made} == {(-1, 0, 0, 0)}


def test_the_likeliest_come_first_and_a_draw_from_the_rest_last():
    last = [draw(torch.tensor([0.1, 0.4, 0.2, 0.3]), 3, TOP, Random(seed)) for seed in range(50)]
    assert {tuple(tokens[:2]) for tokens in last} == {(1, 3)}
    assert {tokens[2] for tokens in last} == {0, 2}


@pytest.mark.parametrize(("siblings", "count"), [(IID, 4), (WITHOUT, 2), (TOP, 2), (Siblings.FIXED, 2)])
def test_where_fewer_tokens_are_possible_there_are_fewer_children_unless_they_repeat(siblings, count):
    model = table.TableModel(lambda text: torch.tensor([0.5, -torch.inf, 0.2], dtype=torch.float64))
    made = proposed(Random(0), siblings, complete(4, 1), model=model)
    assert len(made.tree.children(0)) == count
    assert 1 not in made.tree.tokens[1:]


@DRAWN
def test_with_one_possible_token_a_chain_of_it_is_drawn(siblings):
    made = proposed(Random(0), siblings, complete(2, 2), seq=table.request(top_k=1))
    first = table.model(3, 1).logits(table.PROMPT).argmax()
    assert {made.tree.tokens[c] for c in made.tree.children(0)} == {int(first)}
    assert len(made.tree) == (7 if siblings is IID else 3)


def test_a_draft_model_without_a_possible_token_proposes_nothing():
    made = proposed(Random(0), WITHOUT, complete(2, 2), model=table.TableModel(lambda text: torch.full((3,), torch.nan)))
    assert (len(made.tree), made.logits) == (1, None)


@DRAWN
def test_the_shape_is_the_same_whatever_is_drawn(siblings):
    shapes = {proposed(Random(seed), siblings, BUSH, model=table.model(9, 1)).tree.parents for seed in range(40)}
    assert shapes == {BUSH.parents}


@pytest.mark.parametrize(("room", "parents"), [(1, (-1,)), (2, (-1, 0, 0)), (3, (-1, 0, 0, 1, 1, 2, 2)), (9, complete(2, 3).parents)])
def test_room_cuts_the_depth_of_a_shape_and_nothing_else(room, parents):
    rng = Random(3)
    made = proposed(rng, WITHOUT, complete(2, 3), model=table.model(9, 1), seq=table.request(room))
    whole = proposed(Random(3), WITHOUT, complete(2, 3), model=table.model(9, 1))
    assert made.tree.parents == parents
    assert made.tree.tokens == whole.tree.tokens[: len(parents)]


@pytest.mark.parametrize("siblings", [WITHOUT, Siblings.FIXED])
def test_a_greedy_request_gets_the_likeliest_children_in_the_same_shape(siblings):
    made = proposed(None, siblings, BUSH, seq=table.request(temperature=0.0))
    model = table.model(3, 1)
    first = model.logits(table.PROMPT).topk(2).indices.tolist()
    below = model.logits((*table.PROMPT, first[0])).topk(2).indices.tolist()
    assert (made.tree.tokens, made.tree.parents) == ((table.PROMPT[-1], *first, *below), BUSH.parents)
    assert (made.siblings, made.logits) == (Siblings.FIXED, None)


# the real draft model, in float32


def test_a_row_is_kept_in_half_precision_and_its_largest_is_zero():
    row = stated(torch.tensor([3.0, 1.0 + 1 / 4096, -torch.inf, -1e6]))
    assert row.dtype == torch.float16
    assert row.tolist() == [0.0, -2.0, -torch.inf, -torch.inf]


def test_a_float64_row_keeps_its_precision():
    row = stated(torch.tensor([3.0, 1.0 + 1 / 4096], dtype=torch.float64))
    assert row.tolist() == [0.0, -2.0 + 1 / 4096]


@DRAWN
def test_children_are_draws_from_the_rounded_row(siblings):
    seq, made = draft(LONG, shape=complete(2, 2), siblings=siblings, params={"temperature": 0.9, "seed": 5})
    law, rng = torch.softmax(made.logits[0].float(), -1), Random(5)
    assert made.logits.dtype == torch.float16
    assert torch.equal(made.probs(0), law)
    assert [made.tree.tokens[c] for c in made.tree.children(0)] == draw(law.clone(), 2, siblings, rng)
    exact = torch.softmax(logits(seq.tokens) / 0.9, -1)
    assert 0 < float((law - exact).abs().max()) < 5e-4


@DRAWN
def test_a_row_of_a_batch_is_drawn_as_it_is_alone(siblings):
    prompts, rooms, shape = [LONG, (3,), SHORT, SHORT], [40, 40, 2, 3], complete(2, 2)
    seqs = [matrix.request(p, n, temperature=1.2, seed=i) for i, (p, n) in enumerate(zip(prompts, rooms, strict=True))]
    for slot, seq in enumerate(seqs):
        seq.slot = slot
    batch = DraftModelDrafter(small(), tiny.VOCAB, siblings=siblings, shape=shape).propose(seqs)
    for i, (made, prompt, room) in enumerate(zip(batch, prompts, rooms, strict=True)):
        _, alone = draft(prompt, room, siblings=siblings, shape=shape, params={"temperature": 1.2, "seed": i})
        assert made.tree == alone.tree, f"row {i}"
        assert (made.logits is None) == (alone.logits is None)


@pytest.mark.parametrize("siblings", [Siblings.FIXED, WITHOUT])
def test_children_are_chosen_below_their_own_path(siblings):
    # a penalty moves the lead from 7 to 8 and back again: the children of 7 are not those of 8
    params = {"logit_bias": {7: 1000.0, 8: 999.5}, "frequency_penalty": 1.0, "temperature": 0.05, "seed": 1}
    _, made = draft(SHORT, shape=complete(2, 2), siblings=siblings, params=params)
    below = [[made.tree.tokens[c] for c in made.tree.children(n)] for n in (0, 1, 2)]
    assert below == [[7, 8], [8, 7], [7, 8]], f"children of the root and of its two children: {below}"


def test_a_long_chain_may_be_drawn():
    _, made = draft(LONG, shape=chain(20), siblings=WITHOUT, params={"temperature": 1.0, "seed": 1})
    assert (len(made.tree), made.tree.is_chain) == (21, True)
