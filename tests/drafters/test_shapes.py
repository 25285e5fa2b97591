"""Shapes of sampled drafts, drawn by hand, and Sequoia's against all trees there are."""

from __future__ import annotations

import itertools

import pytest

from paceline.drafters.shapes import BUDGET, DEPTH, MOST_NODES, Shape, chain, complete, reads, sequoia
from paceline.errors import InvalidRequest

#  0 ─┬─ 1 ─┬─ 4       breadth by breadth, children in draw order
#     │     └─ 5
#     ├─ 2
#     └─ 3 ─── 6
BUSH = Shape((-1, 0, 0, 0, 1, 1, 3))


def test_children_are_in_draw_order():
    assert BUSH.children == ((1, 2, 3), (4, 5), (), (6,), (), (), ())


@pytest.mark.parametrize(("shape", "depth"), [(BUSH, 2), (Shape((-1,)), 0), (chain(4), 4), (Shape((-1, 0, 0)), 1)])
def test_depth_is_that_of_the_deepest_node(shape, depth):
    assert shape.depth == depth


@pytest.mark.parametrize(("shape", "is_chain"), [(BUSH, False), (Shape((-1,)), True), (chain(4), True), (complete(2, 1), False)])
def test_a_chain_has_one_node_at_each_depth(shape, is_chain):
    assert shape.is_chain == is_chain


@pytest.mark.parametrize(
    ("text", "parents"),
    [
        ("chain:3", (-1, 0, 1, 2)),
        ("1x3", (-1, 0, 1, 2)),
        ("3x1", (-1, 0, 0, 0)),
        ("2x2", (-1, 0, 0, 1, 1, 2, 2)),
        ("3x2", (-1, 0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3)),
    ],
)
def test_a_shape_is_what_its_text_says(text, parents):
    assert Shape.parse(text).parents == parents


@pytest.mark.parametrize(("sizes", "depth"), [((), DEPTH), ((3,), 3), ((None, 4), 3), ((9, 4), 3), ((2, 40), 2), ((None, 1), 0)])
def test_a_chain_is_as_long_as_depth_and_budget_allow(sizes, depth):
    assert Shape.parse("chain", *sizes) == chain(depth)


@pytest.mark.parametrize(
    "text",
    ["", "bush", "chains", "chain:", "chain:0", "chain:x", "chain:1.5", "2x", "x2", "2x2x2", f"{10**9}x1", "0x3", "3x0", "-1x2", "2X2"],
)
def test_text_of_another_form_is_refused_with_the_forms_there_are(text):
    with pytest.raises(InvalidRequest, match=f"shape '{text}' is none; the forms are chain, chain:LENGTH, WIDTHxDEPTH .* sequoia:P1"):
        Shape.parse(text)


@pytest.mark.parametrize("text", ["sequoia:", "sequoia:a,b", "sequoia:0.5,,0.1", "sequoia"])
def test_a_sequoia_without_numbers_is_refused(text):
    with pytest.raises(InvalidRequest, match=f"shape '{text}' is none"):
        Shape.parse(text)


@pytest.mark.parametrize("numbers", ["0.6,0.5", "-0.1,0.5", "1.5", "nan", "0,0"])
def test_acceptance_of_more_than_one_child_is_refused(numbers):
    with pytest.raises(InvalidRequest, match=rf"acceptance is {numbers.replace(',', ', ')}; .* sum to at most 1"):
        Shape.parse(f"sequoia:{numbers}")


@pytest.mark.parametrize("text", ["2x2", "chain:6"])
@pytest.mark.parametrize("sizes", [{"budget": 5}, {"budget": 50}, {"num_speculative_tokens": 3}])
def test_a_size_that_a_shape_leaves_no_room_for_is_refused_with_both_numbers(text, sizes):
    (name, value), *_ = sizes.items()
    with pytest.raises(InvalidRequest, match=f"shape {text} has 7 nodes whatever {name} {value} says"):
        Shape.parse(text, **sizes)


@pytest.mark.parametrize(("text", "read"), [("chain", {"budget", "num_speculative_tokens"}), ("2x2", set()), ("chain:2", set())])
def test_what_a_shape_leaves_open_is_read(text, read):
    assert reads(text) == read


@pytest.mark.parametrize("text", ["2x40", "1000x2", "chain:2000", "999999999x999999999"])
def test_a_tree_beyond_all_use_is_refused_at_once(text):
    with pytest.raises(InvalidRequest, match=f"more than {MOST_NODES} nodes"):
        Shape.parse(text)


# sequoia


def worth(parents, acceptance) -> float:
    """The expected number of accepted tokens of a tree."""
    values, families = [1.0], [0] * len(parents)
    for parent in parents[1:]:
        values.append(values[parent] * acceptance[families[parent]])
        families[parent] += 1
    return sum(values[1:])


def trees(nodes: int):
    """All trees of up to this size, as parents in breadth-first order."""
    for size in range(1, nodes + 1):
        for parents in itertools.product(*(range(node) for node in range(1, size))):
            if list(parents) == sorted(parents):
                yield (-1, *parents)


CASES = {
    "falling": (0.6, 0.2, 0.08),
    "rising": (0.1, 0.3, 0.45),
    "equal": (0.3, 0.3, 0.3),
    "one": (0.9,),
    "gap": (0.0, 0.8),
    "sure": (1.0, 0.0),
}


@pytest.mark.parametrize("depth", [1, 2, 3, 6])
@pytest.mark.parametrize("acceptance", CASES.values(), ids=CASES)
def test_sequoia_is_worth_as_much_as_the_best_of_all_trees(acceptance, depth):
    fitting = [t for t in trees(7) if Shape(t).depth <= depth and max(map(len, Shape(t).children)) <= len(acceptance)]
    best = max(worth(t, acceptance) for t in fitting)
    made = sequoia(acceptance, 7, depth)
    assert worth(made.parents, acceptance) == pytest.approx(best), f"{made.parents} is worth {worth(made.parents, acceptance)}, not {best}"
    assert (len(made) <= 7, made.depth <= depth) == (True, True), f"{len(made)} nodes, depth {made.depth}"


def test_sequoia_gives_later_children_the_deeper_subtrees_if_they_are_accepted_more_often():
    #  0 ─┬─ 1
    #     └─ 2 ─┬─ 3
    #           └─ 4
    assert sequoia((0.1, 0.8), 5, 4).parents == (-1, 0, 0, 2, 2)


def test_sequoia_takes_its_budget_and_depth_as_told():
    assert Shape.parse("sequoia:0.6,0.2", 3, 9) == sequoia((0.6, 0.2), 9, 3)


def test_sequoia_has_the_drafters_own_size_if_none_is_told():
    assert Shape.parse("sequoia:0.6,0.2") == sequoia((0.6, 0.2), BUDGET, DEPTH)


def test_a_sequoia_of_more_nodes_than_any_use_is_refused():
    with pytest.raises(InvalidRequest, match=f"budget is 5000; a drawn tree has at most {MOST_NODES} nodes"):
        Shape.parse("sequoia:0.6", budget=5000)
