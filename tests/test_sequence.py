"""One request: how new tokens are clipped, how much room is left, and what a bad prompt says."""

from __future__ import annotations

import pytest
import torch

from paceline.errors import InvalidRequest, PromptTooLong
from paceline.sampling import SamplingParams
from paceline.sequence import Logprob, Sequence

PROMPT = [1, 2, 3]
EOS = frozenset([50])


class Watch:
    """Text in which this token completes a stop string."""

    def __init__(self, last: int) -> None:
        self.last, self.pushed = last, []

    def push(self, token: int) -> bool:
        self.pushed.append(token)
        return token == self.last


def contains(token: int):
    return lambda ids, scores: torch.tensor([token in ids[0].tolist()])


def sequence(prompt=PROMPT, *, text=None, max_length=None, **settings) -> Sequence:
    settings.setdefault("max_new_tokens", 5)
    return Sequence(prompt, SamplingParams(**settings), eos_token_ids=EOS, max_length=max_length, text=text)


ENDS = {
    "an end-of-sequence id": ({}, 50),
    "a stop id": ({"stop_token_ids": (40,)}, 40),
    "a stop id although eos is ignored": ({"stop_token_ids": (40,), "ignore_eos": True}, 40),
    "a stop string": ({"stop": ("x",), "text": Watch(30)}, 30),
    "a criterion": ({"stopping_criteria": (contains(99), contains(20))}, 20),
}


@pytest.mark.parametrize(("settings", "end"), ENDS.values(), ids=ENDS)
def test_what_ends_a_text_is_its_last_token(settings, end):
    assert sequence(**settings).extend([7, end, 8], 9) == [7, end]


@pytest.mark.parametrize(("settings", "end"), ENDS.values(), ids=ENDS)
def test_what_ends_a_text_gives_the_reason_stop(settings, end):
    seq = sequence(**settings)
    seq.extend([7, end, 8], 9)
    assert seq.finish_reason == "stop"


@pytest.mark.parametrize(("settings", "end"), ENDS.values(), ids=ENDS)
def test_an_end_on_the_last_allowed_token_counts_as_stop(settings, end):
    seq = sequence(**settings)
    assert (seq.extend([7, 8, 9, 10], end), seq.finish_reason) == ([7, 8, 9, 10, end], "stop")


@pytest.mark.parametrize(("settings", "end"), ENDS.values(), ids=ENDS)
def test_an_end_beyond_the_limit_is_not_reached(settings, end):
    seq = sequence(max_new_tokens=2, **settings)
    assert (seq.extend([7, 8, end], 9), seq.finish_reason) == ([7, 8], "length")


def test_an_ignored_end_of_sequence_id_is_a_token_like_others():
    seq = sequence(ignore_eos=True)
    assert (seq.extend([7, 50], 8), seq.finish_reason) == ([7, 50, 8], None)


def test_all_tokens_are_taken_when_nothing_ends():
    seq = sequence()
    assert (seq.extend([7, 8], 9), seq.tokens, seq.finish_reason) == ([7, 8, 9], [1, 2, 3, 7, 8, 9], None)


def test_the_context_ends_a_text_before_its_limit():
    seq = sequence(max_length=5)
    assert (seq.extend([7, 8, 9], 10), seq.finish_reason) == ([7, 8], "length")


def test_a_criterion_sees_prompt_and_output_after_every_token():
    seen = []
    seq = sequence(stopping_criteria=(lambda ids, scores: seen.append(ids.tolist()) or False,))
    seq.extend([7], 8)
    assert seen == [[[1, 2, 3, 7]], [[1, 2, 3, 7, 8]]]


def test_the_text_is_not_shown_tokens_beyond_the_end():
    watch = Watch(30)
    sequence(text=watch).extend([7, 50, 8], 9)
    assert watch.pushed == [7, 50]


def test_a_finished_sequence_takes_no_more():
    seq = sequence()
    seq.extend([], 50)
    with pytest.raises(AssertionError, match="finished"):
        seq.extend([], 7)


@pytest.mark.parametrize(
    ("count", "max_length", "given", "room"), [(5, None, 0, 5), (5, None, 2, 3), (5, 100, 2, 3), (5, 6, 0, 3), (5, 6, 2, 1), (2, 6, 1, 1)]
)
def test_room_is_the_smaller_of_limit_and_context(count, max_length, given, room):
    seq = sequence(max_new_tokens=count, max_length=max_length)
    for token in range(given):
        seq.extend([], token)
    assert seq.room == room, f"{seq.room} left of {count} new tokens in a context of {max_length} after {given}"


def test_root_and_output_follow_the_tokens():
    seq = sequence()
    before = (seq.root, seq.output)
    seq.extend([7], 8)
    assert (before, seq.root, seq.output) == ((3, []), 8, [7, 8])


def test_restart_forgets_the_last_turn():
    seq = sequence(logprobs=0)
    seq.extend([7], 50)
    seq.logprobs.append(Logprob(7, -1.0))
    seq.restart([4, 5], SamplingParams(max_new_tokens=9))
    assert (seq.tokens, seq.output, seq.room, seq.finish_reason, seq.logprobs) == ([4, 5], [], 9, None, [])


def test_restart_keeps_the_slot():
    seq = sequence()
    seq.slot = 4
    seq.restart([4, 5], SamplingParams())
    assert seq.slot == 4


def test_restart_begins_the_random_choices_anew():
    probs, params = torch.ones(1000), SamplingParams(seed=3)
    seq = Sequence(PROMPT, params)
    first = [seq.rng.pick(probs) for _ in range(5)]
    seq.restart(PROMPT, params)
    assert [seq.rng.pick(probs) for _ in range(5)] == first


def test_a_sequence_does_not_write_to_the_callers_prompt():
    prompt = [1, 2, 3]
    sequence(prompt).extend([], 7)
    assert prompt == [1, 2, 3]


def test_an_empty_prompt_is_refused():
    with pytest.raises(InvalidRequest, match="the prompt is empty"):
        sequence([])


@pytest.mark.parametrize("length", [6, 7])
def test_a_prompt_that_leaves_no_room_is_refused_with_both_numbers(length):
    with pytest.raises(PromptTooLong, match=f"has {length} tokens and the model's context 6"):
        sequence(list(range(length)), max_length=6)


def test_a_prompt_that_leaves_room_for_one_token_is_taken():
    assert sequence(list(range(5)), max_length=6).room == 1


def test_stop_strings_without_a_text_are_refused_by_name():
    with pytest.raises(InvalidRequest, match=r"\('END',\)"):
        sequence(stop=("END",))


def test_features_are_joined_in_order():
    seq = sequence()
    seq.add_features(torch.tensor([[1.0], [2.0]]))
    seq.add_features(torch.tensor([[3.0]]))
    assert (seq.num_features, seq.features.tolist()) == (3, [[1.0], [2.0], [3.0]])


@pytest.mark.parametrize(("length", "left"), [(2, [[1.0], [2.0]]), (0, None)])
def test_features_are_forgotten_from_the_end(length, left):
    seq = sequence()
    seq.add_features(torch.tensor([[1.0], [2.0]]))
    seq.add_features(torch.tensor([[3.0]]))
    seq.keep_features(length)
    assert (None if seq.features is None else seq.features.tolist()) == left


def test_features_can_be_taken_from_a_place_on_without_a_copy():
    seq = Sequence([1, 2, 3, 4], SamplingParams())
    seq.keep_features(0, (5, 7))
    seq.add_features(torch.arange(12.0).view(3, 4))
    rows = seq.features_from(1, (5, 7))
    assert (rows.tolist(), rows.data_ptr()) == ([[4, 5, 6, 7], [8, 9, 10, 11]], seq.features[1:].data_ptr())


@pytest.mark.parametrize(("layers", "columns"), [((5,), [[4, 5]]), ((7,), [[6, 7]]), ((7, 5), [[6, 7, 4, 5]])])
def test_features_of_some_of_the_layers_are_their_columns(layers, columns):
    seq = Sequence([1, 2, 3], SamplingParams())
    seq.keep_features(0, (5, 7))
    seq.add_features(torch.arange(8.0).view(2, 4))
    assert seq.features_from(1, layers).tolist() == columns


def test_features_survive_the_growth_of_their_memory():
    seq = Sequence([1, 2, 3], SamplingParams())
    for i in range(300):
        seq.add_features(torch.tensor([[float(i)]]))
    assert seq.features[:, 0].tolist() == list(range(300))


def test_adding_a_row_copies_no_others():
    seq = Sequence([1, 2, 3], SamplingParams())
    places = set()
    for _ in range(300):
        seq.add_features(torch.zeros(1, 8))
        places.add(seq.features.data_ptr())
    assert len(places) <= 8, f"300 rows were moved {len(places)} times"
