"""The JetSpec drafter: it reads only what is new, keeps to each sequence, and drafts what a new drafter would."""

from __future__ import annotations

import copy
import weakref
from dataclasses import dataclass, field

import pytest

from paceline import engine, methods
from paceline.clock import Clock
from paceline.cost import CostCurve
from paceline.draft import Siblings
from paceline.drafters.jetspec import JetSpecDrafter
from paceline.drafters.merge import MergedDrafter
from paceline.drafters.none import NoDrafter
from paceline.errors import InvalidRequest
from paceline.rules.match import match
from paceline.sampling import SamplingParams
from paceline.stats import Stats

from .. import matrix, tiny
from ..drafts import Planted
from ..heads.small import random_head, taught_head
from ..targets.test_features import Reading

SHORT, LONG, ONE = (matrix.PROMPTS[name] for name in ("short", "long", "one"))


def drafter(**settings) -> JetSpecDrafter:
    return JetSpecDrafter(settings.pop("head", None) or taught_head(), **{"budget": 12, **settings})


@dataclass
class Watched:
    """Checks after every draft that a new drafter, which reads everything at once, would propose the same."""

    inner: JetSpecDrafter
    siblings: Siblings = Siblings.FIXED
    checked: int = 0
    drafts: list = field(default_factory=list)

    @property
    def target_layer_ids(self):
        return self.inner.target_layer_ids

    def propose(self, seqs):
        drafts = self.inner.propose(seqs)
        for seq, draft in zip(seqs, drafts, strict=True):
            (want,) = drafter(head=self.inner.head).propose([seq])
            assert draft.tree == want.tree, f"after {len(seq.output)} tokens: {draft.tree}, a new drafter proposes {want.tree}"
            self.checked += len(draft.tree) > 1
        self.drafts += drafts
        return drafts


def run(target, own, seqs, rounds: int | None = None) -> Stats:
    stats = Stats()
    for count, round_ in enumerate(engine.rounds(target, own, match, seqs), 1):
        stats.add(round_)
        if count == rounds:
            break
    return stats


@pytest.mark.parametrize("head", [taught_head, random_head], ids=["taught", "random"])
@pytest.mark.parametrize("prompt", [ONE, SHORT, LONG], ids=["one", "short", "long"])
def test_each_draft_is_that_of_a_new_drafter(prompt, head):
    watched = Watched(drafter(head=head()))
    run(tiny.target(), watched, [matrix.request(prompt)])
    assert watched.checked > 5, f"only {watched.checked} drafts had a node"


def test_a_ragged_batch_is_drafted_as_each_alone():
    watched = Watched(drafter())
    run(tiny.target(), watched, [matrix.request(p, count) for p, count in ((ONE, 30), (LONG, 12), (SHORT, 30))])
    assert watched.checked > 10


def test_a_second_turn_is_drafted_as_if_it_were_the_first():
    target, watched, seq = tiny.target(), Watched(drafter()), matrix.request(SHORT, 12)
    run(target, watched, [seq])
    engine.next_turn(target, seq, [*seq.tokens[:-3], 1, 2, 3], SamplingParams(max_new_tokens=12))
    run(target, watched, [seq])


def test_a_second_turn_that_is_a_beginning_of_the_first_is_drafted_as_if_it_were_the_first():
    target, watched, seq = tiny.target(), Watched(drafter()), matrix.request(SHORT, 12)
    run(target, watched, [seq])
    engine.next_turn(target, seq, seq.tokens[:-4], SamplingParams(max_new_tokens=4))
    run(target, watched, [seq])


def test_another_sequence_in_its_slot_is_drafted_afresh():
    target, watched = tiny.target(), Watched(drafter())
    for prompt in (LONG, SHORT, LONG):
        engine.generate(target, watched, match, [matrix.request(prompt, 12)])


@pytest.mark.parametrize("other", [Planted, lambda: Reading(0), lambda: Reading(1)], ids=["no features", "layer 0", "layer 1"])
def test_it_goes_on_after_another_drafter(other):
    target, watched, seq = tiny.target(), Watched(drafter()), matrix.request(SHORT)
    run(target, watched, [seq], 3)
    run(target, other(), [seq], 2)
    run(target, watched, [seq])
    matrix.expect(seq.tokens, matrix.plain(SHORT, 40), "jetspec, another, jetspec")


def test_only_new_features_are_projected(monkeypatch):
    own, target, seq = drafter(head=copy.deepcopy(taught_head())), tiny.target(), matrix.request(LONG)
    sizes, fuse = [], own.head.fuse
    monkeypatch.setattr(own.head, "fuse", lambda rows: sizes.append(len(rows)) or fuse(rows))
    rounds = [r.num_accepted + 1 for r in engine.stream(target, own, match, [seq])]
    assert sizes == [len(LONG) - 1, *rounds[: len(sizes) - 1]], f"rows projected {sizes}, tokens per round {rounds}"


def test_one_forward_drafts_a_whole_batch(monkeypatch):
    own, target = drafter(head=copy.deepcopy(taught_head())), tiny.target()
    calls, forward = [], own.head.draft
    monkeypatch.setattr(own.head, "draft", lambda anchors, *rest: calls.append(len(anchors)) or forward(anchors, *rest))
    next(engine.rounds(target, own, match, [matrix.request(p) for p in (ONE, SHORT, LONG)]))
    assert calls == [3]


def test_no_slot_is_run_that_has_no_room():
    own, depths = drafter(head=copy.deepcopy(taught_head())), []
    forward = own.head.draft
    own.head.draft = lambda anchors, contexts, depth: depths.append(depth) or forward(anchors, contexts, depth)
    drafts = [r.draft for r in engine.stream(tiny.target(), own, match, [matrix.request(SHORT, 4)])]
    assert depths[0] == 3, f"{depths[0]} slots where three tokens can be of use"
    assert max(max(d.tree.depth) for d in drafts) <= 3


@pytest.mark.parametrize("count", [1, 2, 5])
def test_no_path_is_longer_than_the_room(count):
    target, own, seq = tiny.target(), drafter(), matrix.request(SHORT, count)
    for round_ in engine.stream(target, own, match, [seq]):
        room = count - (len(seq.output) - len(round_.tokens))
        assert max(round_.draft.tree.depth) <= room - 1, f"depth {max(round_.draft.tree.depth)} with room for {room}"


@pytest.mark.parametrize(
    ("settings", "depth", "nodes"), [({}, 4, 12), ({"num_speculative_tokens": 2}, 2, 12), ({"budget": 3}, 2, 3), ({"budget": 1}, 0, 1)]
)
def test_depth_and_budget_are_kept(settings, depth, nodes):
    watched = Watched(drafter(**settings))
    drafts = [r.draft for r in engine.stream(tiny.target(), watched.inner, match, [matrix.request(LONG)])]
    assert max(max(d.tree.depth) for d in drafts) <= depth
    assert max(len(d.tree) for d in drafts) == nodes


def test_scores_are_there_for_every_node_and_fall_along_each_path():
    for round_ in engine.stream(tiny.target(), drafter(), match, [matrix.request(SHORT)]):
        draft = round_.draft
        falls = [draft.scores[n] <= draft.scores[p] for n, p in enumerate(draft.tree.parents) if n]
        assert (len(draft.scores), draft.scores[0], all(falls)) == (len(draft.tree), 0.0, True), f"scores {draft.scores}"


def test_drafts_of_a_taught_head_are_accepted():
    stats = run(tiny.target(), drafter(), [matrix.request(p) for p in (ONE, SHORT)])
    assert stats.mean_acceptance_length > 1.7, f"mean acceptance length {stats.mean_acceptance_length:.2f}"
    assert len(stats.histogram) > 2, f"accepted lengths are only {sorted(stats.histogram)}"


def test_where_nodes_cost_as_much_as_rounds_few_are_kept():
    dear = CostCurve((1, 2), (1.0, 1.9))
    stats = [run(tiny.target(), drafter(cost=cost), [matrix.request(SHORT)]) for cost in (None, dear)]
    nodes = [s.nodes / s.rounds for s in stats]
    assert nodes[1] < 0.5 * nodes[0], f"nodes per round {nodes}"


def test_chains_and_published_trees_can_be_chosen():
    shapes = {}
    for builder in ("best_first", "all_children", "chain"):
        rounds = list(engine.stream(tiny.target(), drafter(builder=builder), match, [matrix.request(SHORT)]))
        shapes[builder] = rounds[0].draft.tree
        matrix.expect(rounds[0].sequence.tokens, matrix.plain(SHORT, 40), builder)
    assert shapes["chain"].is_chain
    assert len(shapes["all_children"].children(0)) == 7, "the published builder gives the root seven children"


@pytest.mark.parametrize(
    ("settings", "says"),
    [({"num_speculative_tokens": 5}, "is 5, and this head drafts at most 4"), ({"builder": "oak"}, "'oak' is unknown")],
)
def test_settings_that_mean_nothing_are_refused(settings, says):
    with pytest.raises(InvalidRequest, match=says):
        drafter(**settings)


def test_a_merged_drafter_gives_each_its_own_layers():
    first, second = random_head(tiny.target(), taps=(0,)), random_head(tiny.target(), taps=(1,), seed=1)
    both = MergedDrafter([drafter(head=first), drafter(head=second)], 24)
    assert both.target_layer_ids == (0, 1)
    for own, target in zip(both.drafters, (tiny.target(), tiny.target()), strict=True):
        engine.prefill(target, [seq := matrix.request(SHORT)], both.target_layer_ids)
        engine.prefill(target, [alone := matrix.request(SHORT)], own.target_layer_ids)
        (got,), (want,) = own.propose([seq]), drafter(head=own.head).propose([alone])
        assert got.tree == want.tree, f"{got.tree} of features of two layers, {want.tree} of its own"


def test_its_memory_ends_with_it():
    own = drafter()
    run(tiny.target(), own, [matrix.request(SHORT, 8)])
    held = [weakref.ref(state.context) for state in own._states.values()]
    assert [ref().nbytes > 0 for ref in held] == [True]
    del own
    assert [ref() for ref in held] == [None]


def test_memory_is_flat_over_many_requests():
    target, own, held = tiny.target(), drafter(), []
    for _ in range(12):
        engine.generate(target, own, match, [matrix.request(LONG, 4)])
        held.append(sum(s.context.nbytes for s in own._states.values()))
    assert held[0] == held[-1], f"bytes held after each request: {held}"


def test_a_random_head_passes_the_compact_matrix(monkeypatch):
    head = random_head(tiny.target())
    monkeypatch.setattr(matrix, "method", lambda row, target: methods.build("jetspec", target, methods.Options(head=head, budget=9)))
    assert matrix.compact("a random head") == []


def test_the_default_budget_follows_the_measured_cost():
    own, _ = methods.build("jetspec", tiny.target(), methods.Options(head=taught_head()))
    assert (own.budget, isinstance(own.cost, CostCurve)) == (24, True)


def test_a_given_budget_is_kept_whatever_it_costs():
    own, _ = methods.build("jetspec", tiny.target(), methods.Options(head=taught_head(), budget=7))
    assert (own.budget, own.cost) == (7, None)


def test_a_clock_counts_the_drafts_of_a_head_that_is_part_of_a_merged_drafter():
    target, clock = tiny.target(), Clock()
    head = taught_head()
    drafts = []
    merged = MergedDrafter([NoDrafter(), JetSpecDrafter(head, budget=6)], 6)
    seq = matrix.request(matrix.PROMPTS["short"], 9)
    with clock.watching_heads(merged):
        for round_ in engine.stream(target, merged, match, [seq]):
            drafts.append(len(round_.draft.tree) > 1)
        assert {"draft", "fuse", "context_kv", "markov", "markov_table"} <= vars(head).keys(), "all that a head computes is timed"
    assert (clock.forwards, clock.seconds > 0) == (sum(drafts), True)
    assert not {"draft", "markov"} & vars(head).keys(), "the head is as it was"
