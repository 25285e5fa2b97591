"""Features: online and cached ones, shards that are whole or not there, and room on the disk."""

from __future__ import annotations

import json

import pytest
import torch

from paceline.errors import InvalidRequest, PacelineError, UnsupportedModel
from paceline.train import teacher
from paceline.train.disk import need_room
from paceline.train.features import Store, Taps, packs

from .conftest import sequences

MARK = "target"


def full_pass(target, example):
    """Layers 0 and 1 by Transformers' own hidden states, and the state that the output layer reads."""
    got = {}
    hooks = [layer.register_forward_hook(lambda m, a, out, i=i: got.update({i: out})) for i, layer in enumerate(target.decoder_layers)]
    head = target.model.get_output_embeddings().register_forward_pre_hook(lambda m, a: got.update({"hidden": a[0]}))
    from paceline.tree import Tree

    target.verify([Tree.chain(example.tokens[:-1])], [target.cache.open()])
    for hook in (*hooks, head):
        hook.remove()
    first, second = (got[i][0] if isinstance(got[i], tuple) else got[i] for i in (0, 1))
    return torch.cat([first, second], -1).squeeze(0), got["hidden"].squeeze(0)


def test_a_packed_pass_gives_each_sequence_what_it_gives_alone_to_the_output_layer(teacher_target, taps):
    examples = sequences(teacher_target)
    for example, tapped in zip(examples, taps.read([e.tokens for e in examples]), strict=True):
        features, hidden = full_pass(teacher_target, example)
        assert torch.allclose(tapped.features, features, atol=1e-4), f"{example.key}: features differ"
        assert torch.allclose(tapped.hidden, hidden, atol=1e-4), f"{example.key}: last states differ"


def test_the_last_layer_is_read_even_if_the_head_does_not(teacher_target):
    taps = Taps(teacher_target, (0,))
    (tapped,) = taps.read([sequences(teacher_target, 1)[0].tokens])
    assert tapped.features.shape[1] == teacher_target.config.hidden_size
    assert tapped.hidden.shape == tapped.features.shape


def test_reading_gives_all_slots_back(teacher_target, taps):
    taps.read([e.tokens for e in sequences(teacher_target)])
    assert teacher_target.cache.nbytes == 0


def test_the_store_gives_back_what_the_target_gave_in_bfloat16(teacher_target, taps, tmp_path):
    examples = sequences(teacher_target, 5)
    store = Store(tmp_path / "f", taps, MARK, 1)
    store.complete(examples, print)
    for example in examples:
        got = store.get(example)
        (want,) = taps.read([example.tokens])
        assert torch.equal(got.features, want.features.to(torch.bfloat16)), example.key
        assert torch.equal(got.hidden, want.hidden.to(torch.bfloat16)), example.key


def count_reads(taps, monkeypatch):
    read, seen = taps.read, []
    monkeypatch.setattr(taps, "read", lambda found: seen.extend(found) or read(found))
    return seen


def test_only_what_is_missing_or_too_short_is_made_again(teacher_target, taps, tmp_path, monkeypatch):
    examples = sequences(teacher_target, 5)
    Store(tmp_path / "f", taps, MARK, 1).complete(examples[:2], print)
    seen = count_reads(taps, monkeypatch)
    longer = type(examples[1])(examples[1].key, "random", (*examples[1].tokens, 5), examples[1].prompt_length)
    store = Store(tmp_path / "f", taps, MARK, 1)
    store.complete([examples[0], longer, examples[2]], print)
    assert seen == [longer.tokens, examples[2].tokens]
    assert len(store.get(longer).hidden) == len(longer) - 1


def test_shards_are_cut_at_their_size_and_a_shard_that_the_index_does_not_know_is_made_again(teacher_target, taps, tmp_path, monkeypatch):
    examples = sequences(teacher_target, 5)
    monkeypatch.setattr("paceline.train.features.MB", 4000)
    store = Store(tmp_path / "f", taps, MARK, 1)
    for example in examples:
        rows = teacher_target.prefill([teacher_target.cache.open()], [example.tokens[:-1]], taps.layer_ids)
        store.add(example.key, rows[0])
    store.flush()
    shards = sorted(f.name for f in (tmp_path / "f").glob("*.safetensors"))
    assert len(shards) > 2, shards
    index = tmp_path / "f" / "index.jsonl"
    lines = [line for line in index.read_text().splitlines(keepends=True) if shards[-1] not in line]
    index.write_text("".join(lines) + '{"key": "e')  # a crash between the shard and its lines
    again = Store(tmp_path / "f", taps, MARK, 1)
    assert sorted(f.name for f in (tmp_path / "f").glob("*.safetensors")) == shards[:-1]
    again.complete(examples, print)
    assert all(len(again.get(e).hidden) == len(e) - 1 for e in examples)


def test_features_of_other_layers_or_another_target_are_refused(teacher_target, taps, tmp_path):
    Store(tmp_path / "f", taps, MARK, 1)
    with pytest.raises(InvalidRequest, match="other layers"):
        Store(tmp_path / "f", Taps(teacher_target, (0,)), MARK, 1)
    with pytest.raises(InvalidRequest, match="another target"):
        Store(tmp_path / "f", taps, "other", 1)


def test_a_full_disk_leaves_what_is_whole(teacher_target, taps, tmp_path):
    import resource

    examples = sequences(teacher_target, 4)
    store = Store(tmp_path / "f", taps, MARK, 1)
    store.complete(examples[:1], print)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        with pytest.raises(PacelineError, match=r"cannot write .*safetensors.*make room"):
            store.complete(examples, print)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [f.name for f in (tmp_path / "f").glob("*safetensors*")] == ["00000.safetensors"]
    again = Store(tmp_path / "f", taps, MARK, 1)
    again.complete(examples, print)
    assert len(again.get(examples[3]).hidden) == len(examples[3]) - 1


def test_packs_hold_at_most_so_many_tokens_but_at_least_one_sequence(teacher_target):
    examples = sequences(teacher_target, 5)  # of 14, 19, 24, 29, 34 tokens
    assert [[e.key for e in pack] for pack in packs(examples, 33)] == [["e0", "e1"], ["e2"], ["e3"], ["e4"]]


def test_the_estimate_is_refused_if_the_disk_has_less_unless_told_to_go_on(tmp_path):
    assert "the features: 1 MB of disk" in need_room(tmp_path, 1 << 20, "the features")
    with pytest.raises(PacelineError, match="online, or try it with --yes"):
        need_room(tmp_path / "not" / "there", 1 << 60, "the features")
    assert "MB are free" in need_room(tmp_path, 1 << 60, "the features", anyway=True)


def test_a_target_whose_logits_are_not_norm_times_matrix_is_no_teacher(teacher_target, taps):
    tokens = sequences(teacher_target, 1)[0].tokens
    teacher.check(teacher_target, taps, tokens)
    taps._norm = torch.nn.Identity()
    with pytest.raises(UnsupportedModel, match=r"off by .* so it cannot teach by loss kl"):
        teacher.check(teacher_target, taps, tokens)


def test_the_index_names_key_shard_and_rows(teacher_target, taps, tmp_path):
    (example,) = sequences(teacher_target, 1)
    Store(tmp_path / "f", taps, MARK, 1).complete([example], print)
    line = json.loads((tmp_path / "f" / "index.jsonl").read_text())
    assert line == {"key": "e0", "shard": "00000.safetensors", "rows": len(example) - 1}
