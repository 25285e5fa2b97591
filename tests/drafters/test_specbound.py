"""SpecBound drafts with the target's own layers: the text is the target's whatever the exits say, and no layer runs more often than the
cost model says."""

from __future__ import annotations

import random

import pytest

from paceline import engine, methods
from paceline.errors import InvalidRequest
from paceline.rules.match import match
from paceline.tree import Tree

from ..matrix import PROMPTS, expect, request
from .climbing import ALWAYS, LAYERS, NEVER, Counted, Scripted, answer, deep, drafter

PROMPT = PROMPTS["short"]
COUNT = 16
GATES = {
    "always": lambda token, depth: True,
    "never": lambda token, depth: False,
    "deeper each time": lambda token, depth: depth >= (2, 2, 4, 6)[min(token, 3)],
    "laggards twice": lambda token, depth: depth >= (2, 4, 2, 4)[min(token, 3)],
    "a difficult third token": lambda token, depth: token < 2,
}


def decode(target, built, count: int = COUNT, prompt=PROMPT):
    """The request and its rounds."""
    seq = request(prompt, count)
    return seq, list(engine.stream(target, built, match, [seq]))


@pytest.mark.parametrize("threshold", [ALWAYS, 0.2, NEVER])
@pytest.mark.parametrize(("layers", "depth", "width"), [((1,), 1, 1), ((1, 2, 3), 5, 16), ((3, 6), 6, 3)])
def test_greedy_text_is_the_oracles_within_any_bounds(threshold, layers, depth, width):
    target = deep()
    seq, _ = decode(target, drafter(target, layers, threshold=threshold, depth=depth, width=width))
    expect(seq.tokens, answer(COUNT, PROMPT), f"threshold {threshold}, exits {layers}, depth {depth}, width {width}")


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "gemma2", "gemma3", "mistral", "phi3", "gpt_neox", "gpt2", "olmo2"])
def test_greedy_text_is_the_oracles_in_every_architecture(family):
    target = deep(family)
    built = drafter(target, (2, 4), depth=4, width=4, kind=Scripted)
    built.gate = GATES["laggards twice"]
    seq, rounds = decode(target, built)
    expect(seq.tokens, answer(COUNT, PROMPT, family), family)
    assert sum(r.num_accepted for r in rounds) > 0, "no draft was accepted, which tests little"


@pytest.mark.parametrize("seed", range(4))
def test_greedy_text_is_the_oracles_under_random_gates(seed):
    target, dice = deep(), random.Random(seed)
    built = drafter(target, (1, 2, 4, 5), depth=dice.choice([1, 2, 4, 5]), width=dice.randint(1, 6), kind=Scripted)
    built.gate = lambda token, depth: dice.random() < 0.4
    seq, rounds = decode(target, built)
    expect(seq.tokens, answer(COUNT, PROMPT), f"random gates {seed}")
    assert max(len(r.draft.tree) for r in rounds) > 1, "nothing was drafted"


@pytest.mark.parametrize("gate", GATES.values(), ids=GATES)
def test_a_batch_of_ragged_requests_gives_each_the_oracles_text(gate):
    target = deep()
    built = drafter(target, (2, 4), depth=4, width=5, kind=Scripted)
    built.gate = gate
    cases = [(PROMPTS["one"], 17), (PROMPTS["short"], 1), (PROMPTS["long"], 9), (PROMPTS["short"], 16), (PROMPTS["one"], 2)]
    seqs = [request(prompt, count) for prompt, count in cases]
    engine.generate(target, built, match, seqs)
    for seq, (prompt, count) in zip(seqs, cases, strict=True):
        expect(seq.tokens, answer(count, prompt), f"a prompt of {len(prompt)} in a batch")


def test_sequences_that_draft_together_share_their_layer_calls():
    target, counts = deep(), {}
    for size in (1, 3):
        own = deep()
        built = drafter(own, (2,), width=3)
        counted = Counted(own)
        engine.generate(own, built, match, [request(PROMPT, 12) for _ in range(size)])
        counts[size] = counted.layers
    assert counts[3] == counts[1], f"{counts[1]} layer calls for one sequence and {counts[3]} for three alike ({target.name})"


# what it costs


@pytest.mark.parametrize("width", [1, 5])
@pytest.mark.parametrize("gate", GATES.values(), ids=GATES)
def test_a_round_runs_as_many_layers_as_the_cost_model_says(gate, width):
    """L + the sum of the depths at which drafts exited, and never more than L + width * depth."""
    target = deep()
    built = drafter(target, (2, 4), depth=4, width=width, kind=Scripted)
    built.gate = gate
    counted, seq = Counted(target), request(PROMPT, COUNT)
    for round_ in engine.rounds(target, built, match, [seq]):
        drafts = len(round_.draft.tree) - 1
        exits = [next(d for d in (2, 4) if gate(n, d)) for n in range(drafts)]
        assert counted.layers == LAYERS + sum(exits), f"{counted.layers} layers ran for exits at {exits}"
        assert counted.layers <= LAYERS + width * 4
        counted.calls.clear()


def test_no_exit_costs_what_plain_decoding_does():
    target = deep()
    built = drafter(target, (2, 4), threshold=NEVER)
    counted = Counted(target)
    _, rounds = decode(target, built)
    assert (counted.layers, len(rounds)) == (COUNT * LAYERS, COUNT)


def test_no_token_passes_a_layer_twice():
    target, rows = deep(), []
    built = drafter(target, (1, 3), threshold=0.2, width=4)
    for index, layer in enumerate(target.decoder_layers):
        layer.register_forward_hook(lambda m, a, out, i=index: rows.append((i, a[0].shape[1])))
    try:
        seq = request(PROMPT, COUNT)
        for round_ in engine.rounds(target, built, match, [seq]):
            if len(rows) and not round_.finish_reason:
                ran = {i: sum(n for layer, n in rows if layer == i) for i in range(LAYERS)}
                first = len(seq.tokens) - len(round_.tokens) == len(PROMPT)
                nodes = len(round_.draft.tree) + (len(PROMPT) - 1) * first
                assert set(ran.values()) == {nodes}, f"rows by layer {ran} for {nodes} nodes"
            rows.clear()
    finally:
        for layer in target.decoder_layers:
            layer._forward_hooks.clear()


# what it leaves behind


@pytest.mark.parametrize("gate", GATES.values(), ids=GATES)
def test_after_each_round_the_cache_is_that_of_a_fresh_prefill(gate):
    target = deep()
    built = drafter(target, (2, 4), depth=4, width=4, kind=Scripted)
    built.gate = gate
    seq = request(PROMPT, 14)
    for _ in engine.rounds(target, built, match, [seq]):
        fresh = target.cache.open()
        target.prefill([fresh], [seq.tokens[:-1]])
        far = max(
            float((a[:, : len(seq.tokens) - 1] - b[:, : len(seq.tokens) - 1]).abs().max())
            for a, b in zip(target.cache._slots[seq.slot].buffers(), target.cache._slots[fresh].buffers(), strict=True)
        )
        target.cache.free(fresh)
        assert far < 1e-5, f"keys and values are off by {far:.1e} after {len(seq.tokens)} tokens"


def test_a_draft_that_was_abandoned_leaves_no_trace():
    target = deep()
    built, seq = drafter(target, (2, 4)), request(PROMPT, COUNT)
    engine.prefill(target, [seq])
    built.propose([seq])  # and the round goes no further
    engine.generate(target, built, match, [seq])
    expect(seq.tokens, answer(COUNT, PROMPT), "after an abandoned draft")


def test_another_drafter_may_go_on_between_rounds():
    target, seq = deep(), request(PROMPT, COUNT)
    for count, _ in enumerate(engine.rounds(target, drafter(target, (2, 4)), match, [seq])):
        if count == 2:
            break
    engine.generate(target, *methods.build("lookup", target), [seq])
    expect(seq.tokens, answer(COUNT, PROMPT), "specbound, then lookup")


# the request's own settings


def test_drafts_end_at_an_end_of_sequence_id():
    target = deep()
    built = drafter(target, (4,), width=12)
    first = answer(1, PROMPT)[-1]
    seq = request(PROMPT, COUNT, eos=first)
    engine.prefill(target, [seq])
    seq.eos_token_ids = frozenset(range(61))
    (draft,) = built.propose([seq])
    assert len(draft.tree) == 2, f"{len(draft.tree) - 1} drafts, the first of which ends the text"


@pytest.mark.parametrize("room", [1, 2, 3])
def test_no_draft_is_deeper_than_the_room(room):
    target, seq = deep(), request(PROMPT, room)
    engine.prefill(target, [seq])
    (draft,) = drafter(target, (2,), width=9).propose([seq])
    assert len(draft.tree) == room, f"{len(draft.tree)} nodes where {room} tokens may come"


def test_penalties_apply_to_drafts_at_every_position():
    target = deep()
    seq = request(PROMPT, 12, frequency_penalty=50.0)
    for round_ in engine.stream(target, drafter(target, (4,), width=6), match, [seq]):
        drafted = round_.draft.tree.tokens[1:]
        assert len(set(drafted)) == len(drafted), f"drafts {drafted} repeat what they were punished for"


def test_a_draft_says_how_far_each_token_is():
    target, seq = deep(), request(PROMPT, COUNT)
    built = drafter(target, (2, 4), width=4, kind=Scripted)
    built.gate = lambda token, depth: depth >= (2, 4, 2, 4)[token]
    engine.prefill(target, [seq])
    (draft,) = built.propose([seq])
    assert draft.head_start.depth == (4, 4, 4, 4, 0), f"depths {draft.head_start.depth}"
    assert draft.tree == Tree.chain(draft.tree.tokens)


# bad input


@pytest.mark.parametrize(
    ("layers", "options", "complaint"),
    [
        ((2, 9), {}, "exit layers are \\[2, 9\\]; in this target an exit is after 1 to 6 layers"),
        ((4, 2), {}, "must be different and ascending"),
        ((2, 4), {"depth": 1}, "the exit depth is 1; the first exit is after 2 of 6"),
        ((2, 4), {"depth": 7}, "the exit depth is 7"),
    ],
)
def test_exits_that_cannot_be_are_refused(layers, options, complaint):
    with pytest.raises(InvalidRequest, match=complaint):
        drafter(deep(), layers, **options)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"threshold": "1.2"}, "it would never fire"),
        ({"threshold": "much"}, "exit setting threshold is 'much'"),
        ({"annealing": -1}, "it must be at least 0"),
        ({"layers": "4,2"}, "different, ascending"),
        ({"speed": 3}, "exit setting 'speed' is unknown; there are layers, depth, threshold, annealing"),
        ({"layers": "4", "depth": 2}, "the exit depth is 2"),
    ],
)
def test_settings_that_cannot_be_are_refused_without_a_model(settings, complaint):
    with pytest.raises(InvalidRequest, match=complaint):
        methods.check("specbound", methods.Options(exit_settings=settings))


def test_joining_another_drafter_is_refused():
    with pytest.raises(InvalidRequest, match="another tree would lose; name it alone"):
        methods.parse("lookup+specbound")


def test_layers_that_no_head_reads_are_refused():
    target = deep()
    with pytest.raises(InvalidRequest, match="there is no exit head at layer 3; these exits read 2, 4"):
        drafter(target, (2, 4), depth=3, only=(3,))


def test_the_method_of_the_table_drafts_by_the_lens_without_heads():
    target = deep()
    built, rule = methods.build("specbound", target, methods.Options(exit_settings={"threshold": 0}))
    seq = request(PROMPT, COUNT)
    accepted = sum(r.num_accepted for r in engine.stream(target, built, rule, [seq]))
    expect(seq.tokens, answer(COUNT, PROMPT), "specbound by name")
    assert accepted > 0, "nothing was accepted"
