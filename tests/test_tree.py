"""Trees drawn by hand.

0:5
├── 1:6
│   ├── 3:8
│   │   └── 6:5
│   └── 4:9
└── 2:7
    └── 5:8
"""

from __future__ import annotations

import pytest

from paceline.tree import Tree, TreeBuilder

TREE = Tree((5, 6, 7, 8, 9, 8, 5), (-1, 0, 0, 1, 1, 2, 3))


def test_depth_is_the_distance_from_the_root():
    assert TREE.depth == (0, 1, 1, 2, 2, 2, 3)


def test_a_node_sees_itself_and_its_ancestors_only():
    drawn = ["".join("#" if seen else "." for seen in row) for row in TREE.ancestors.tolist()]
    assert drawn == ["#......", "##.....", "#.#....", "##.#...", "##..#..", "#.#..#.", "##.#..#"], "\n".join(drawn)


def test_a_node_of_a_chain_sees_all_before_it():
    drawn = ["".join("#" if seen else "." for seen in row) for row in Tree.chain([5, 6, 7]).ancestors.tolist()]
    assert drawn == ["#..", "##.", "###"], "\n".join(drawn)


@pytest.mark.parametrize(("node", "children"), [(0, (1, 2)), (1, (3, 4)), (2, (5,)), (3, (6,)), (4, ()), (6, ())])
def test_children_come_in_their_own_order(node, children):
    assert TREE.children(node) == children


@pytest.mark.parametrize(("node", "path"), [(0, [0]), (2, [0, 2]), (4, [0, 1, 4]), (6, [0, 1, 3, 6])])
def test_a_path_leads_from_the_root_to_the_node(node, path):
    assert TREE.path(node) == path


@pytest.mark.parametrize(
    ("tokens", "path"),
    [
        ([5, 6, 8, 5], [0, 1, 3, 6]),
        ([5, 6, 8, 5, 1], [0, 1, 3, 6]),  # goes on beyond the leaf
        ([5, 7, 8, 5], [0, 2, 5]),  # the other 8 has no child
        ([5, 6, 7], [0, 1]),  # 7 is there, but elsewhere
        ([5, 8], [0]),
        ([5], [0]),
        ([6, 8], []),  # not this root
        ([], []),
    ],
)
def test_follow_goes_as_far_as_the_tokens_agree(tokens, path):
    assert TREE.follow(tokens) == path


def test_follow_goes_on_below_whichever_of_equal_siblings_goes_further():
    #  5 ─┬─ 6 ─── 7
    #     └─ 6 ─── 8 ─── 9
    tree = Tree((5, 6, 6, 7, 8, 9), (-1, 0, 0, 1, 2, 4))
    assert (tree.follow([5, 6, 8, 9, 1]), tree.follow([5, 6, 7]), tree.follow([5, 6])) == ([0, 2, 4, 5], [0, 1, 3], [0, 1])


def test_a_chain_has_one_child_per_node():
    assert Tree.chain([5, 6, 7]) == Tree((5, 6, 7), (-1, 0, 1))


@pytest.mark.parametrize(
    ("tree", "chain"), [(Tree.chain([5]), True), (Tree.chain([5, 6, 7]), True), (TREE, False), (Tree((5, 6, 7), (-1, 0, 0)), False)]
)
def test_a_tree_knows_whether_it_is_a_chain(tree, chain):
    assert tree.is_chain is chain


def test_the_length_of_a_tree_counts_its_root():
    assert (len(TREE), len(Tree.chain([5]))) == (7, 1)


@pytest.mark.parametrize(
    ("tokens", "parents", "message"),
    [
        ((), (), "got 0 tokens and 0 parents"),
        ((5, 6), (-1,), "got 2 tokens and 1 parents"),
        ((5, 6), (0, 0), "parent -1, got 0"),
        ((5, 6, 7), (-1, 0, 2), "node 2 has parent 2, which must be between 0 and 1"),
        ((5, 6, 7), (-1, 2, 0), "node 1 has parent 2, which must be between 0 and 0"),
        ((5, 6, 7), (-1, 0, -1), "node 2 has parent -1, which must be between 0 and 1"),
    ],
)
def test_a_malformed_tree_is_refused_with_the_value(tokens, parents, message):
    with pytest.raises(ValueError, match=message):
        Tree(tokens, parents)


def test_a_builder_merges_chains_with_a_common_start():
    builder = TreeBuilder(5, 10)
    builder.add_chain([6, 8, 5])
    builder.add_chain([6, 9])
    builder.add_chain([7])
    assert builder.build() == Tree((5, 6, 8, 5, 9, 7), (-1, 0, 1, 2, 1, 0))


def test_a_builder_adds_a_chain_below_the_node_it_is_told():
    builder = TreeBuilder(5, 10)
    node = builder.add(0, 6)
    builder.add_chain([6, 9], node)
    assert builder.build() == Tree((5, 6, 6, 9), (-1, 0, 1, 2))


def test_equal_tokens_under_different_parents_stay_apart():
    builder = TreeBuilder(5, 10)
    builder.add_chain([6, 8])
    builder.add_chain([7, 8])
    assert builder.build() == Tree((5, 6, 8, 7, 8), (-1, 0, 1, 0, 3))


def test_a_builder_stops_at_its_budget_in_the_middle_of_a_chain():
    builder = TreeBuilder(5, 3)
    builder.add_chain([6, 7, 8, 9])
    assert builder.build() == Tree.chain([5, 6, 7])


def test_a_full_builder_still_finds_what_is_there():
    builder = TreeBuilder(5, 2)
    node = builder.add(0, 6)
    assert (builder.full, builder.add(0, 6), builder.add(0, 7)) == (True, node, None)
