"""Training sequences: which tokens are supervised."""

from __future__ import annotations

from paceline.train.examples import Example, prompts_as_texts


def test_prompts_as_texts_are_supervised_behind_what_all_begin_with():
    made = [Example("a", "t", (1, 1, 5, 6, 7, 8), 4), Example("b", "t", (1, 1, 9, 2, 3), 4), Example("c", "t", (1, 1, 5, 4, 4, 4, 4), 3)]
    found = prompts_as_texts(made)
    assert [(e.key, e.tokens, e.prompt_length) for e in found] == [("a", (1, 1, 5, 6), 2), ("b", (1, 1, 9, 2), 2)], "c leaves one token"


def test_a_single_prompt_is_supervised_from_its_second_token():
    (found,) = prompts_as_texts([Example("a", "t", (4, 5, 6, 7, 8), 4)])
    assert (found.tokens, found.prompt_length) == ((4, 5, 6, 7), 1)
