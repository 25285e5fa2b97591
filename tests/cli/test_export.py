"""`paceline export`: heads in public layouts, read back with the same drafts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from paceline.heads import formats
from paceline.heads.jetspec import Context, JetSpecConfig, JetSpecHead
from paceline.targets.hf import HFTarget
from paceline.targets.load import load

from .conftest import Call


@pytest.fixture
def target(model: str) -> HFTarget:
    return load(model, dtype="float32", weights="plain")


def save(target: HFTarget, folder: Path, ids: torch.Tensor | None = None, **settings: Any) -> Path:
    torch.manual_seed(0)
    config = JetSpecConfig.for_target(target, block_size=4, taps=(0,), draft_vocab_size=None if ids is None else len(ids), **settings)
    head = JetSpecHead.for_target(target, config, ids)
    formats.save(head, folder, dtype=torch.float32)
    return folder


@torch.no_grad()
def drafts(folder: Path, target: HFTarget) -> torch.Tensor:
    head = formats.load(folder, target)
    torch.manual_seed(1)
    context = Context()
    fused = head.fuse(torch.randn(5, head.config.feature_size))
    context.append(head.context_kv(fused, torch.arange(5)), fused[-1])
    return head.draft(torch.tensor([7]), [context])


def files(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir())}


IDS = torch.arange(0, 300, 3)


@pytest.mark.parametrize("layout", ["dflash", "speculators"])
@pytest.mark.parametrize(
    ("ids", "settings", "options"),
    [(None, {"mask_token_id": 3}, []), (IDS, {"mask_token_id": 3}, ["--model"]), (IDS, {}, ["--model", "--mask-token-id", "2"])],
    ids=["plain", "reduced vocabulary", "trained mask"],
)
def test_an_exported_head_drafts_the_same(paceline, model, target, tmp_path, layout, ids, settings, options):
    head = save(target, tmp_path / "head", ids, **settings)
    given = [part for option in options for part in ((option, model) if option == "--model" else (option,))]
    result = paceline("export", str(head), "--to", layout, "--out", str(tmp_path / "out"), *given)
    assert result.code == 0, result.err
    worst = float((drafts(tmp_path / "out", target) - drafts(head, target)).abs().max())
    assert worst < 1e-5, f"{layout}: off by {worst:.1e}"


@pytest.mark.parametrize("layout", ["dflash", "speculators"])
def test_export_import_export_is_byte_identical(paceline, model, target, tmp_path, layout):
    head = save(target, tmp_path / "head", IDS)
    for source, out in ((head, "first"), (tmp_path / "first", "second")):
        result = paceline(
            "export",
            str(source),
            "--to",
            layout,
            "--out",
            str(tmp_path / out),
            "--model",
            model,
            *(["--mask-token-id", "2"] if source == head else []),
        )
        assert result.code == 0, result.err
    assert files(tmp_path / "first") == files(tmp_path / "second")


def test_there_and_back_gives_the_flat_files_again(paceline, target, tmp_path):
    head = save(target, tmp_path / "head", mask_token_id=3)
    for source, layout, out in ((head, "dflash", "a"), (tmp_path / "a", "speculators", "b"), (tmp_path / "b", "dflash", "c")):
        assert paceline("export", str(source), "--to", layout, "--out", str(tmp_path / out)).code == 0
    assert files(tmp_path / "a") == files(tmp_path / "c")


def test_a_reduced_vocabulary_goes_out_with_its_rows(paceline, model, target, tmp_path):
    head = save(target, tmp_path / "head", IDS, mask_token_id=3)
    assert paceline("export", str(head), "--to", "dflash", "--out", str(tmp_path / "out"), "--model", model).code == 0
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    rows = target.model.get_output_embeddings().weight.detach()[IDS]
    assert torch.equal(tensors["lm_head.weight"], rows)
    assert torch.equal(tensors["d2t"] + torch.arange(100), IDS)


def test_a_head_for_other_servers_has_no_tensor_that_they_do_not_know(paceline, model, target, tmp_path):
    head = save(target, tmp_path / "head", IDS, markov_rank=2, last_feature=True)
    options = ["--model", model, "--mask-token-id", "2", "--without-markov", "--without-last-row"]
    assert paceline("export", str(head), "--to", "dflash", "--out", str(tmp_path / "out"), *options).code == 0
    names = {n for n in load_file(tmp_path / "out" / "model.safetensors") if not n.startswith("layers.")}
    assert names == {"fc.weight", "hidden_norm.weight", "norm.weight", "d2t", "t2d", "lm_head.weight", "embed_tokens.weight"}
    assert not formats.load(tmp_path / "out", target).config.last_feature


def test_other_servers_are_told_three_times_that_blocks_are_causal(paceline, target, tmp_path):
    head = save(target, tmp_path / "head", mask_token_id=3)
    assert paceline("export", str(head), "--to", "dflash", "--out", str(tmp_path / "out")).code == 0
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["is_causal"], config["dflash_config"]["causal"], config["dflash_config"]["causal_head"]) == (True, True, True)


@pytest.mark.parametrize(
    ("settings", "options", "says"),
    [
        ({"markov_rank": 2, "mask_token_id": 3}, [], "--without-markov"),
        ({"last_feature": True, "mask_token_id": 3}, [], "--without-last-row"),
        ({"mask_token_id": 3}, ["--without-markov"], "--without-markov has no effect"),
        ({"mask_token_id": 3}, ["--without-last-row"], "--without-last-row has no effect"),
        ({}, [], "name the target with --model"),
        ({}, ["--model"], "--mask-token-id is None"),
        ({}, ["--model", "--mask-token-id", "99999"], "--mask-token-id is 99999"),
        ({"mask_token_id": 3}, ["--mask-token-id", "2"], "--mask-token-id has no effect"),
    ],
)
def test_what_must_be_said_first_is_one_line(paceline: Call, model, target, tmp_path, settings, options, says):
    head = save(target, tmp_path / "head", **settings)
    given = [part for option in options for part in ((option, model) if option == "--model" else (option,))]
    result = paceline("export", str(head), "--to", "dflash", "--out", str(tmp_path / "out"), *given)
    assert (result.code, result.err.count("\n"), says in result.err) == (2, 1, True), result.err
    assert not (tmp_path / "out").exists(), "something was written"


@pytest.mark.parametrize(("settings", "option"), [({"markov_rank": 2}, ()), ({}, ("--without-markov",))])
def test_what_a_layout_cannot_hold_is_said_before_the_target_is_loaded(paceline: Call, target, tmp_path, settings, option):
    head = save(target, tmp_path / "head", **settings)
    result = paceline("export", str(head), "--to", "dflash", "--out", str(tmp_path / "out"), "--model", str(tmp_path / "none"), *option)
    assert (result.code, "--without-markov" in result.err) == (2, True), result.err


def test_a_folder_that_is_there_is_not_overwritten(paceline, target, tmp_path):
    head = save(target, tmp_path / "head", mask_token_id=3)
    before = files(head)
    result = paceline("export", str(head), "--to", "dflash", "--out", str(head))
    assert (result.code, files(head) == before) == (2, True), result.err
