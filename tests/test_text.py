"""From tokens to text: whole characters only, nothing taken back, and stop strings wherever the tokens happen to cut them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import accumulate, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from paceline.text import TextStream

from . import bpe

CORPUS = ["the quiet lake sings 🌧️ to the rain 🌧️", "naïve café — naïve café", "雨が降る雨が降る", "👩‍👩‍👧 and 👩‍👩‍👧"]
REPLACEMENT = "\ufffd"


@cache
def trained() -> Any:
    """A byte-level BPE with all bytes, merges inside and across characters, and one special token."""
    return PreTrainedTokenizerFast(tokenizer_object=bpe.trained(CORPUS * 4, 340, ["<|end|>"]), eos_token="<|end|>")


def _letters() -> dict[int, str]:
    """How byte-level tokenizers write each byte: visible ones as themselves, the others as the letters from 256 on."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [b for b in range(256) if b not in visible]
    return {**{b: chr(b) for b in visible}, **{b: chr(256 + i) for i, b in enumerate(hidden)}}


LETTERS = _letters()


def spelled(pieces: Sequence[bytes]) -> tuple[Any, list[int]]:
    """A byte-level tokenizer that has exactly these pieces as tokens, and their ids."""
    names = ["".join(LETTERS[b] for b in piece) for piece in pieces]
    vocabulary = {name: i for i, name in enumerate(dict.fromkeys(names))}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made), [vocabulary[name] for name in names]


def pushed(tokenizer: Any, ids: Sequence[int], stop: tuple[str, ...] = ()) -> tuple[list[str], TextStream]:
    """What may be shown after each token, up to a stop, with the finished text as the last entry."""
    stream, shown = TextStream(tokenizer, stop), []
    for token in ids:
        stopped = stream.push(token)
        shown.append(stream.text)
        if stopped:
            break
    return [*shown, stream.finish()], stream


def decoded(tokenizer: Any, ids: Sequence[int]) -> str:
    return str(tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))


def expect_nothing_taken_back(shown: Sequence[str]) -> None:
    for at, (earlier, later) in enumerate(pairwise(shown)):
        assert later.startswith(earlier), f"token {at + 1} took text back: {earlier!r} became {later!r}"


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    """The bytes in pieces, cut at these places."""
    at = sorted({0, len(data), *(p % (len(data) + 1) for p in places)})
    return [data[a:b] for a, b in pairwise(at)]


random_ids = st.lists(st.integers(0, 339), max_size=40)
random_pieces = st.lists(st.binary(min_size=1, max_size=4) | st.sampled_from(CORPUS).map(str.encode), min_size=1, max_size=12)
characters = st.text(st.sampled_from("ab é雨🌧\u200d"), min_size=1, max_size=12)
stops = st.lists(st.text(st.sampled_from("abé"), min_size=1, max_size=3), min_size=1, max_size=3).map(tuple)
places = st.lists(st.integers(0, 60), max_size=12)


# --- without stop strings


@given(random_ids)
def test_the_finished_text_is_that_of_all_tokens_at_once(ids):
    ids = [i % len(trained()) for i in ids]
    shown, _ = pushed(trained(), ids)
    assert shown[-1] == decoded(trained(), ids), f"of {len(ids)} tokens"


@given(random_ids)
def test_nothing_that_was_shown_is_taken_back(ids):
    expect_nothing_taken_back(pushed(trained(), [i % len(trained()) for i in ids])[0])


@given(random_pieces)
def test_tokens_of_any_bytes_give_the_text_of_all_tokens_at_once(pieces):
    tokenizer, ids = spelled(pieces)
    shown, _ = pushed(tokenizer, ids)
    expect_nothing_taken_back(shown)
    assert shown[-1] == decoded(tokenizer, ids), f"pieces {pieces}"


@given(characters, places)
def test_whole_characters_only_are_shown_however_the_tokens_cut_them(text, at):
    tokenizer, ids = spelled(cut(text.encode(), at))
    shown, _ = pushed(tokenizer, ids)
    assert shown[-1] == text, f"{len(ids)} tokens for {len(text)} characters"
    assert not [s for s in shown if REPLACEMENT in s], f"half a character was shown: {shown}"


@pytest.mark.parametrize("text", ["🌧", "雨", "é"])
def test_a_character_is_shown_with_its_last_byte(text):
    data = text.encode()
    shown, _ = pushed(*spelled([b"<", *(bytes([b]) for b in data), b">"]))
    assert shown == ["<"] * len(data) + [f"<{text}", f"<{text}>", f"<{text}>"], f"{len(data)} bytes were shown as {shown}"


def test_text_is_shown_as_soon_as_it_is_whole():
    ids = trained()("the quiet lake")["input_ids"]
    shown, _ = pushed(trained(), ids)
    assert shown[:-1] == [decoded(trained(), ids[: n + 1]) for n in range(len(ids))]


def test_half_a_character_at_the_end_is_shown_by_finish_only():
    shown, _ = pushed(*spelled([b"a", b"\xf0\x9f"]))
    assert shown == ["a", "a", "a" + REPLACEMENT]


def test_an_emoji_of_several_code_points_comes_out_whole():
    astronaut = "👨‍🚀"
    ids = trained()(astronaut)["input_ids"]
    assert len(ids) > 3, f"the tokenizer has {len(ids)} tokens for it: nothing is tested"
    assert pushed(trained(), ids)[0][-1] == astronaut


def test_special_tokens_are_not_shown():
    ids = [*trained()("the lake")["input_ids"], trained().eos_token_id, *trained()(" sings")["input_ids"]]
    assert pushed(trained(), ids)[0][-1] == "the lake sings"


def test_special_tokens_are_shown_if_asked_for():
    stream = TextStream(trained(), skip_special_tokens=False)
    for token in [*trained()("the lake")["input_ids"], trained().eos_token_id]:
        stream.push(token)
    assert stream.finish() == "the lake<|end|>"


def _metaspace() -> Any:
    """Words with a mark for the space before them, as in Llama 2: the decoder drops the space of the very first token."""
    words = Tokenizer(models.WordLevel({"▁the": 0, "▁lake": 1, "s": 2, "▁": 3, "<unk>": 4}, unk_token="<unk>"))
    words.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=words)


def test_no_space_is_lost_between_tokens_that_carry_it_in_front():
    shown, _ = pushed(_metaspace(), [0, 1, 2, 3, 0, 1])
    assert shown[:-1] == ["the", "the lake", "the lakes", "the lakes ", "the lakes  the", "the lakes  the lake"]


def test_a_continuation_keeps_the_space_of_its_first_token_if_it_knows_the_context():
    stream = TextStream(_metaspace(), context=[0])
    stream.push(1)
    assert stream.finish() == " lake"


# --- stop strings


@pytest.mark.parametrize(
    ("pieces", "stop", "text"),
    [
        ([b"one ", b"ST", b"OP", b" two"], ("STOP",), "one "),
        ([b"one ", b"S", b"T", b"O", b"P", b" two"], ("STOP",), "one "),
        ([b"one ", b"STOP two"], ("STOP",), "one "),
        ([b"one S", b"TOP two"], ("STOP",), "one "),
        ([b"STOP"], ("STOP",), ""),
        ([b"one ", b"STOP"], ("STOP",), "one "),
        ([b"one ", b"S", b"STOP"], ("STOP",), "one S"),
        ([b"abab", b"ac"], ("abac",), "ab"),
        ([b"one END STOP"], ("STOP", "END"), "one "),
        ([b"one STOP END"], ("STOP", "END"), "one "),
        ([b"xabcd"], ("bc", "abcd"), "x"),
        ([b"xa", b"b"], ("ab", "b"), "x"),
        ([b"\xe9\x9b", b"\xa8 rain"], ("雨",), ""),
        ([b"in ", b"\xf0\x9f", b"\x8c\xa7 out"], ("🌧",), "in "),
        ([b"a\n", b"\nb"], ("\n\n",), "a"),
    ],
)
def test_the_text_ends_before_the_earliest_stop_string(pieces, stop, text):
    shown, stream = pushed(*spelled(pieces), stop)
    assert (stream.stopped, shown[-1]) == (True, text), f"pieces {pieces}, stop strings {stop}"


def test_push_says_which_token_completes_the_stop_string():
    tokenizer, ids = spelled([b"one ", b"ST", b"OP", b" two"])
    stream = TextStream(tokenizer, ("STOP",))
    assert [stream.push(i) for i in ids[:3]] == [False, False, True]


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        ([b"one ", b"ST", b"AR"], ["one ", "one ", "one STAR"]),
        ([b"one S", b"S", b"ST"], ["one ", "one S", "one SS"]),
        ([b"S", b"T", b"O"], ["", "", ""]),
    ],
)
def test_what_may_become_a_stop_string_is_held_back_until_it_does_not(pieces, shown):
    assert pushed(*spelled(pieces), ("STOP",))[0][:-1] == shown


def test_the_longest_possible_beginning_of_a_stop_string_is_held_back():
    assert pushed(*spelled([b"one a", b"a"]), ("aab",))[0][:-1] == ["one ", "one "]


def test_the_beginning_of_a_stop_string_at_the_very_end_is_shown_by_finish():
    assert pushed(*spelled([b"one ", b"STO"]), ("STOP",))[0] == ["one ", "one ", "one STO"]


def test_a_stop_string_is_found_beside_half_a_character_when_the_tokens_end():
    shown, stream = pushed(*spelled([b"one", b" STOP\xe2"]), ("STOP",))
    assert (shown[-1], stream.stopped) == ("one ", True)


def test_a_stop_string_of_a_special_token_is_not_seen_in_hidden_text():
    ids = [*trained()("the lake")["input_ids"], trained().eos_token_id]
    assert pushed(trained(), ids, ("<|end|>",))[1].stopped is False


@given(characters, places, stops)
def test_no_stop_string_is_ever_shown(text, at, stop):
    shown, _ = pushed(*spelled(cut(text.encode(), at)), stop)
    assert not [(s, word) for s in shown for word in stop if word in s], f"stop strings {stop}, shown {shown}"


@given(characters, places, stops)
def test_with_stop_strings_too_nothing_is_taken_back(text, at, stop):
    expect_nothing_taken_back(pushed(*spelled(cut(text.encode(), at)), stop)[0])


@given(characters, places, stops)
def test_the_stop_comes_with_the_first_token_whose_text_holds_a_stop_string(text, at, stop):
    pieces = cut(text.encode(), at)
    prefixes = [p.decode(errors="ignore") for p in accumulate(pieces)]  # whole characters only
    ends = [p.endswith(REPLACEMENT) or len(p.encode()) != n for p, n in zip(prefixes, accumulate(map(len, pieces)), strict=True)]
    first = next((i for i, (p, half) in enumerate(zip(prefixes, ends, strict=True)) if not half and any(w in p for w in stop)), None)
    shown, stream = pushed(*spelled(pieces), stop)
    if first is None:
        assert (stream.stopped, shown[-1]) == (False, text), f"pieces {pieces}, stop strings {stop}"
    else:
        want = prefixes[first][: min(prefixes[first].find(w) for w in stop if w in prefixes[first])]
        assert (len(shown) - 2, shown[-1]) == (first, want), f"pieces {pieces}, stop strings {stop}"
