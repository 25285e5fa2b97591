"""Every mistake: one line on stderr that says what is wrong and what to do, exit code 2, nothing on stdout, no traceback."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from .conftest import Call, Result, save_model


def assert_refused(result: Result, *words: str) -> None:
    assert result.code == 2, f"exit code {result.code}: {result.err}"
    assert result.out == ""
    assert result.err.startswith("error: "), result.err
    assert result.err.count("\n") == 1, result.err
    for word in words:
        assert word in result.err, f"{word!r} is not in {result.err!r}"


@pytest.fixture
def no_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading a model fails the test: what can be checked without it must be."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a model was loaded before the options were checked")

    monkeypatch.setattr("paceline.targets.load.load", refuse)


@pytest.mark.usefixtures("no_loading")
@pytest.mark.parametrize("command", ["generate", "chat"])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--max-new-tokens", "0"], ["max_new_tokens is 0", "at least 1"]),
        (["--max-new-tokens", "-3"], ["max_new_tokens is -3"]),
        (["--max-new-tokens", "many"], ["--max-new-tokens", "integer"]),
        (["--temperature", "-1"], ["temperature is -1.0"]),
        (["--temperature", "nan"], ["temperature is nan"]),
        (["--temperature", "1", "--top-p", "1.5"], ["top_p is 1.5"]),
        (["--repetition-penalty", "0"], ["repetition_penalty is 0"]),
        (["--stop", ""], ["stop is", "non-empty"]),
        (["--method", "magic"], ["unknown method 'magic'", "lookup"]),
        (["--method", "lookup/magic"], ["unknown rule 'magic'", "match"]),
        (["--method", "lookup+lookup"], ["twice"]),
        (["--method", "draft_model"], ["--draft-model"]),
        (["--method", "lookup/rejection"], ["rule rejection", "use rule match"]),
        (["--method", "draft_model", "--draft-model", "small", "--shape", "bush"], ["'bush'", "chain", "sequoia:P1"]),
        (["--method", "draft_model/rejection", "--draft-model", "small", "--shape", "2x2"], ["rule rejection", "shape 2x2"]),
        (["--budget", "0"], ["--budget", "equal to 1"]),
        (["--num-speculative-tokens", "0"], ["--num-speculative-tokens", "equal to 1"]),
        (["--weights", "int4"], ["--weights int4", "another model"]),
        (["--no-such-option"], ["--no-such-option", "--help"]),
    ],
)
def test_a_bad_value_is_refused_before_a_model_is_loaded(paceline: Call, command: str, options: list[str], words: list[str]) -> None:
    prompt = ["hello"] if command == "generate" else []
    assert_refused(paceline(command, *prompt, *options), *words)


@pytest.mark.usefixtures("no_loading")
@pytest.mark.parametrize("command", ["generate", "chat"])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--method", "lookup", "--draft-model", "somewhere"], ["--draft-model", "method lookup"]),
        (["--method", "none", "--budget", "4"], ["--budget", "method none"]),
        (["--method", "none", "--num-speculative-tokens", "4"], ["--num-speculative-tokens", "method none"]),
        (["--shape", "2x2"], ["--shape", "method auto"]),
        (["--method", "draft_model", "--draft-model", "small", "--shape", "2x2", "--budget", "4"], ["shape 2x2 has 7 nodes", "budget 4"]),
        (["--draft-weights", "int4"], ["--draft-weights", "--draft-model"]),
        (["--top-p", "0.9"], ["--top-p", "--temperature"]),
        (["--top-k", "5"], ["--top-k", "--temperature"]),
        (["--min-p", "0.1"], ["--min-p", "--temperature"]),
        (["--seed", "1"], ["--seed", "--temperature"]),
        (["--top-p", "0.9", "--seed", "1"], ["--top-p and --seed have"]),
        (["--revision", "main"], ["--revision", "smollm2"]),
        (["--model", "a/b@c", "--revision", "main"], ["--revision main", "a/b@c"]),
        (["--json", "--stream"], ["--stream", "--json"]),
    ],
)
def test_an_option_without_effect_is_refused(paceline: Call, command: str, options: list[str], words: list[str]) -> None:
    prompt = ["hello"] if command == "generate" else []
    assert_refused(paceline(command, *prompt, *options), *words)


@pytest.mark.usefixtures("no_loading")
def test_a_system_message_for_raw_text_is_refused(paceline: Call) -> None:
    assert_refused(paceline("generate", "hello", "--raw", "--system", "be kind"), "--system", "--raw")


@pytest.mark.usefixtures("no_loading")
@pytest.mark.parametrize("prompt", ["", "  \n"])
def test_an_empty_prompt_is_refused(paceline: Call, prompt: str) -> None:
    assert_refused(paceline("generate", prompt), "prompt is empty")
    assert_refused(paceline("generate", "-", stdin=prompt), "prompt is empty")


@pytest.mark.usefixtures("no_loading")
def test_bytes_that_are_no_text_are_refused(paceline: Call) -> None:
    assert_refused(paceline("generate", b"caf\xe9".decode("utf-8", "surrogateescape")), "not UTF-8")


def test_a_missing_prompt_is_refused(paceline: Call) -> None:
    assert_refused(paceline("generate"), "prompt", "generate --help")


def test_an_unknown_command_is_refused(paceline: Call) -> None:
    assert_refused(paceline("gener8"), "gener8", "--help")


@pytest.mark.parametrize("name", ["./nowhere", "nowhere", "nowhere.gguf"])
def test_a_model_that_is_not_there_is_refused(paceline: Call, name: str) -> None:
    assert_refused(paceline("generate", "hello", "--model", name), name, "smollm2")


def test_a_folder_without_a_model_is_refused(paceline: Call, tmp_path: Path) -> None:
    assert_refused(paceline("generate", "hello", "--model", str(tmp_path)), str(tmp_path), "config.json")


@pytest.mark.parametrize("broken", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_broken_model_folder_is_refused(paceline: Call, model: str, tmp_path: Path, broken: str) -> None:
    folder = Path(shutil.copytree(model, tmp_path / "model"))
    (folder / broken).write_bytes((folder / broken).read_bytes()[:100])
    assert_refused(paceline("generate", "hello", "--model", str(folder)), str(folder), "cannot be loaded")


def test_a_revision_of_a_local_folder_is_refused(generate: Call) -> None:
    assert_refused(generate("hello", "--revision", "main"), "--revision", "leave it out")


def test_an_unknown_dtype_or_weights_and_an_absent_device_are_refused(paceline: Call, model: str) -> None:
    assert_refused(paceline("generate", "hello", "--model", model, "--weights", "int3"), "int3", "plain")
    assert_refused(paceline("generate", "hello", "--model", model, "--dtype", "int3"), "int3", "float32")
    assert_refused(paceline("generate", "hello", "--model", model, "--device", "gpu7"), "gpu7", "cpu")


def test_a_prompt_longer_than_the_context_is_refused(generate: Call) -> None:
    assert_refused(generate("rain " * 400), "context 256", "shorten")


def test_a_chat_longer_than_the_context_is_refused_when_piped(chat: Call) -> None:
    assert_refused(chat(stdin="rain " * 400), "context 256", "shorten")


def test_a_draft_model_with_another_tokenizer_is_refused(generate: Call, tmp_path: Path) -> None:
    stranger = save_model(tmp_path / "stranger", sentences=["zebras ask for other pieces, zebras ask for others"])
    assert_refused(generate("hello", "--method", "draft_model", "--draft-model", stranger), "another tokenizer", "token ")


def test_a_missing_draft_model_is_known_before_the_target_is_loaded(generate: Call, no_loading: None) -> None:
    assert_refused(generate("hello", "--method", "draft_model", "--draft-model", "./nowhere"), "./nowhere")


def test_a_rule_that_does_not_fit_the_drafter_is_refused(generate: Call) -> None:
    assert_refused(generate("hello", "--method", "lookup/rejection"), "rule rejection", "use rule match")


def test_a_model_without_a_chat_template_asks_for_raw(paceline: Call, tmp_path: Path) -> None:
    folder = save_model(tmp_path / "base", template=None)
    assert_refused(paceline("generate", "hello", "--model", folder), "chat template", "--raw")
    assert paceline("generate", "hello", "--model", folder, "--raw", "--max-new-tokens", "2").code == 0


def test_weights_that_are_not_numbers_are_refused(paceline: Call, model: str, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = Path(shutil.copytree(model, tmp_path / "model"))
    weights = load_file(folder / "model.safetensors")
    save_file({name: tensor * float("nan") for name, tensor in weights.items()}, folder / "model.safetensors", {"format": "pt"})
    assert_refused(paceline("generate", "hello", "--model", str(folder), "--no-stream"), "not numbers", "--dtype float32")


def test_a_model_with_recurrent_state_is_refused_with_the_reason(paceline: Call, model: str, tmp_path: Path) -> None:
    from transformers import MambaConfig, MambaForCausalLM

    folder = Path(shutil.copytree(model, tmp_path / "model"))
    vocab = json.loads((folder / "config.json").read_text())["vocab_size"]
    MambaForCausalLM(MambaConfig(vocab_size=vocab, hidden_size=16, num_hidden_layers=1, state_size=4)).save_pretrained(folder)
    assert_refused(paceline("generate", "hello", "--model", str(folder)), "recurrent", "choose a model")
