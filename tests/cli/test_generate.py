"""`paceline generate` on a tiny model: what it prints, and where."""

from __future__ import annotations

import pytest

from paceline import SamplingParams, api, load

from .conftest import Call

PROMPT = "the rain falls on the quiet lake and the rain falls on"
METHODS = ["none", "lookup", "draft_model", "lookup+draft_model"]


def flags(method: str, draft_model: str) -> list[str]:
    return ["--method", method, *(["--draft-model", draft_model] if "draft_model" in method else [])]


@pytest.mark.parametrize("method", METHODS)
def test_the_text_is_that_of_the_library(generate: Call, model: str, draft_model: str, method: str) -> None:
    done = api.generate(load(model, dtype="float32"), [PROMPT], SamplingParams(max_new_tokens=24), method="none")[0]
    assert generate(PROMPT, "--max-new-tokens", "24", *flags(method, draft_model)).out == done.text + "\n"


@pytest.mark.parametrize("method", METHODS)
def test_streamed_text_equals_text_printed_at_the_end(generate: Call, draft_model: str, method: str) -> None:
    args = [PROMPT, "--max-new-tokens", "40", "--stop", "zz", *flags(method, draft_model)]
    whole, streamed = generate(*args, "--no-stream"), generate(*args, "--stream")
    assert len(whole.out) > 20
    assert (streamed.code, streamed.out) == (0, whole.out)


def test_streaming_writes_round_by_round(generate: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces: list[str] = []
    monkeypatch.setattr("paceline.cli.running.write", pieces.append)
    generate(PROMPT, "--max-new-tokens", "24", "--method", "none", "--stream")
    assert len(pieces) > 10


def test_nothing_but_the_text_is_printed_where_no_terminal_is(generate: Call) -> None:
    result = generate(PROMPT, "--max-new-tokens", "8")
    assert result.err == ""
    assert "\x1b" not in result.out


def test_a_prompt_comes_from_stdin_without_its_last_line_break(generate: Call) -> None:
    args = ["--raw", "--max-new-tokens", "12", "--json"]
    piped, given, other = generate("-", *args, stdin=PROMPT + "\n"), generate(PROMPT, *args), generate(PROMPT + "\n", *args)
    assert piped.json["tokens"] == given.json["tokens"]
    assert piped.json["prompt_tokens"] == given.json["prompt_tokens"] == other.json["prompt_tokens"] - 1


def test_json_is_one_line_with_everything(generate: Call, model: str) -> None:
    found = generate(PROMPT, "--max-new-tokens", "24", "--json").json
    statistics = found.pop("statistics")
    assert found.pop("auto")["rounds"] >= statistics["rounds"]  # it remembers the warm-up
    assert set(found) == {"text", "tokens", "finish_reason", "prompt_tokens", "method", "rule", "lossless", "model", "seed"}
    assert (found["method"], found["rule"], found["lossless"], found["model"], found["seed"]) == ("auto", "match", True, model, None)
    assert found["finish_reason"] in {"length", "stop"}
    assert set(statistics["time_share"]) == {"target", "draft", "other"}
    assert sum(statistics["time_share"].values()) == pytest.approx(1)
    assert statistics["tokens_per_second"] == pytest.approx(len(found["tokens"]) / statistics["seconds"])


def test_the_statistics_fit_together(generate: Call, draft_model: str) -> None:
    found = generate(PROMPT, "--max-new-tokens", "40", "--json", *flags("lookup+draft_model", draft_model)).json
    s = found["statistics"]
    accepted = sum(kept * rounds for kept, rounds in enumerate(s["acceptance_histogram"]))
    assert sum(s["acceptance_histogram"]) == s["rounds"] == s["target_forwards"]
    assert s["mean_acceptance_length"] == pytest.approx(1 + accepted / s["rounds"])
    assert 0 <= s["acceptance_rate"] <= 1
    assert s["time_share"]["draft"] > 0
    assert len(found["tokens"]) == accepted + s["rounds"]


def test_a_stop_string_ends_the_text_before_it(generate: Call) -> None:
    text = generate(PROMPT, "--max-new-tokens", "40").out
    stop = text[10:13]
    found = generate(PROMPT, "--max-new-tokens", "40", "--stop", "never there", "--stop", stop, "--json").json
    assert found["text"] == text[: text.index(stop)]
    assert found["finish_reason"] == "stop"


def test_the_same_seed_gives_the_same_sample_and_another_one_does_not(generate: Call) -> None:
    args = [PROMPT, "--max-new-tokens", "24", "--temperature", "1.5", "--top-k", "50", "--json"]
    first, again, other = (generate(*args, "--seed", seed).json["tokens"] for seed in ("1", "1", "2"))
    assert first == again != other


def test_a_chosen_seed_is_named_so_that_the_sample_can_be_repeated(generate: Call) -> None:
    args = [PROMPT, "--max-new-tokens", "24", "--temperature", "1.5", "--json"]
    first = generate(*args).json
    assert generate(*args, "--seed", str(first["seed"])).json["tokens"] == first["tokens"]


def test_a_system_message_is_part_of_the_prompt(generate: Call) -> None:
    bare, with_system = generate("hello", "--json").json, generate("hello", "--json", "--system", "sing").json
    assert with_system["prompt_tokens"] > bare["prompt_tokens"]


def words(text: str) -> str:
    return " ".join(text.split())


def test_stats_compare_with_plain_decoding_on_stderr(generate: Call) -> None:
    args = [PROMPT, "--max-new-tokens", "24"]
    result = generate(*args, "--stats")
    assert result.out == generate(*args).out
    for part in ("auto, rule match: lossless", "target forwards", "1 + accepted / rounds", "tokens per second", "other"):
        assert part in words(result.err), result.err
    assert "measured: once, here, against paceline's own plain decoding" in words(result.err)
    assert "identical to plain decoding" in words(result.err)
    assert "\x1b" not in result.err


def test_stats_of_plain_decoding_compare_with_nothing(generate: Call) -> None:
    err = generate(PROMPT, "--max-new-tokens", "8", "--stats", "--method", "none").err
    assert "target forwards" in err
    assert "speed-up" not in err


def test_stats_of_a_sample_do_not_compare_texts(generate: Call) -> None:
    err = words(generate(PROMPT, "--max-new-tokens", "8", "--stats", "--temperature", "1").err)
    assert "speed-up" in err
    assert "plain decoding)" in err
    assert "identical" not in err
    assert "differs" not in err


@pytest.mark.parametrize(("dtype", "reason"), [("float32", "please report"), ("bfloat16", "near-tie")])
def test_stats_say_where_the_text_differs_from_plain_decoding(
    paceline: Call, model: str, monkeypatch: pytest.MonkeyPatch, dtype: str, reason: str
) -> None:
    from paceline.drafters.none import NoDrafter
    from paceline.rules.match import match
    from paceline.rules.walk import Rule, Step

    def wrong(node: object, rng: object) -> Step:
        return Step(None, 5)

    def zero(target: object) -> tuple[NoDrafter, Rule]:
        return NoDrafter(), Rule("zero", wrong, match.needs, True, greedy=wrong)

    monkeypatch.setattr("paceline.cli.running.build", lambda method, target: zero(target))
    err = words(paceline("generate", PROMPT, "--model", model, "--dtype", dtype, "--max-new-tokens", "4", "--stats").err)
    assert "differs from plain decoding, token 1 is" in err
    assert reason in err


@pytest.mark.real
def test_the_embedded_model_prints_an_answer_and_its_statistics(paceline: Call) -> None:
    result = paceline("generate", "Write a haiku about rain", "--max-new-tokens", "12", "--dtype", "float32", "--stats")
    assert result.code == 0, result.err
    assert len(result.out) > 20
    assert "identical to plain decoding" in words(result.err)
