"""`paceline chat` with piped lines: each is a turn."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from paceline import SamplingParams, api, load

from .conftest import Call, Result


def turns(result: Result) -> list[dict[str, Any]]:
    assert result.code == 0, result.err
    return [json.loads(line) for line in result.out.splitlines()]


def fresh(model: str, lines: list[str], answers: list[str]) -> list[int]:
    """Tokens of the next answer, from a conversation read at once."""
    messages = []
    for i, line in enumerate(lines):
        messages.append({"role": "user", "content": line})
        if i < len(answers):
            messages.append({"role": "assistant", "content": answers[i]})
    return api.generate(load(model, dtype="float32"), [messages], SamplingParams(max_new_tokens=24), method="none")[0].tokens


@pytest.mark.parametrize("method", ["none", "lookup", "draft_model"])
def test_a_second_turn_re_uses_the_cache_and_equals_a_fresh_run(chat: Call, model: str, draft_model: str, method: str) -> None:
    flags = ["--draft-model", draft_model] if method == "draft_model" else []
    lines = ["the rain falls", "a bird sings on the wall"]
    first, second = turns(chat("--json", "--method", method, *flags, stdin="\n".join(lines)))
    assert first["tokens"] == fresh(model, lines[:1], [])
    assert second["tokens"] == fresh(model, lines, [first["text"]])
    assert first["reused_prompt_tokens"] == 0
    assert first["prompt_tokens"] <= second["reused_prompt_tokens"] < second["prompt_tokens"]


def test_each_answer_is_a_line_and_empty_lines_are_no_turns(chat: Call) -> None:
    one, two = turns(chat("--json", stdin="the rain\nthe bird\n"))
    result = chat(stdin="the rain\n\n   \nthe bird\n")
    assert result.out == f"{one['text']}\n{two['text']}\n"
    assert result.err == ""


def test_streamed_answers_equal_those_printed_at_the_end(chat: Call) -> None:
    stdin = "the rain\nthe bird\n"
    assert chat("--stream", stdin=stdin).out == chat("--no-stream", stdin=stdin).out


def test_reset_starts_over_but_keeps_the_system_message(chat: Call) -> None:
    first, _, after = turns(chat("--json", "--system", "sing", stdin="the rain\nthe bird\n/reset\nthe rain\n"))
    assert after["reused_prompt_tokens"] == 0
    assert (after["tokens"], after["prompt_tokens"]) == (first["tokens"], first["prompt_tokens"])
    assert turns(chat("--json", stdin="the rain"))[0]["prompt_tokens"] < first["prompt_tokens"]


def test_exit_ends_the_chat(chat: Call) -> None:
    assert len(turns(chat("--json", stdin="the rain\n/exit\nthe bird\n"))) == 1


def test_stats_tell_how_many_prompt_tokens_were_re_used(chat: Call) -> None:
    _, second = turns(chat("--json", stdin="the rain\nthe bird\n"))
    err = " ".join(chat("--stats", stdin="the rain\nthe bird\n").err.split())
    assert f"{second['prompt_tokens']} tokens, {second['reused_prompt_tokens']} of them re-used" in err
    assert "mean acceptance length" in err


def interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Press Ctrl-C in the third round of the next answer."""
    stream, answers = api.stream, []

    def pressed(*args: Any) -> Iterator[Any]:
        answers.append(0)
        for i, item in enumerate(stream(*args)):
            if len(answers) == 1 and i == 2:
                signal.raise_signal(signal.SIGINT)
            yield item

    monkeypatch.setattr(api, "stream", pressed)


def test_ctrl_c_stops_the_answer_and_keeps_the_chat_whole(chat: Call, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt(monkeypatch)
    lines = ["the rain falls", "a bird sings on the wall"]
    first, second = turns(chat("--json", "--method", "none", stdin="\n".join(lines)))
    assert (first["finish_reason"], len(first["tokens"])) == ("abort", 3)
    assert second["reused_prompt_tokens"] >= first["prompt_tokens"]
    assert second["tokens"] == fresh(model, lines, [first["text"]])


def test_ctrl_c_shows_the_text_that_a_stop_string_held_back(chat: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt(monkeypatch)
    partial = turns(chat("--json", "--method", "none", stdin="the rain falls"))[0]["text"]
    assert partial
    whole = turns(chat("--json", "--method", "none", stdin="the rain falls"))[0]["text"]
    interrupt(monkeypatch)
    held = chat("--method", "none", "--stream", "--stop", whole + "never there", stdin="the rain falls").out
    assert held == partial + "\n"


def test_ctrl_c_while_a_model_is_loaded_ends_with_130(chat: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def pressed(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("paceline.targets.load.load", pressed)
    result = chat(stdin="the rain\n")
    assert (result.code, result.out, result.err) == (130, "", "")


@pytest.mark.real
def test_the_embedded_model_re_reads_nothing_of_a_first_turn(paceline: Call) -> None:
    args = ["chat", "--json", "--dtype", "float32", "--max-new-tokens", "8"]
    first, second = turns(paceline(*args, stdin="Name a colour.\nName another one.\n"))
    assert second["reused_prompt_tokens"] >= first["prompt_tokens"] + len(first["tokens"]) - 1
