"""Transformers' own ways to generate, against ours."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from paceline.bench.lineup import Lineup, line_up
from paceline.bench.peers import NAMES, PeerRun, Unable
from paceline.bench.runs import Decoded
from paceline.bench.settings import Settings

PROMPT = [0, 84, 104, 101, 32, 84, 104, 101, 32, 2, 1]
Make = Callable[..., Settings]


@pytest.fixture
def lineup(settings: Make, draft_model: str) -> Lineup:
    return line_up(settings(methods=("none", "draft_model"), peers=NAMES, draft_model=draft_model), lambda _: None)


def decode(lineup: Lineup, name: str, limit: int = 24) -> Decoded:
    (run,) = [r for r in lineup.runs if r.name == name]
    return run.decode([PROMPT], [limit])


@pytest.mark.parametrize("peer", NAMES)
def test_every_peer_gives_our_tokens_in_fp32(lineup: Lineup, peer: str) -> None:
    assert lineup.skipped == {}
    expected = decode(lineup, "none").outputs
    assert len(set(expected[0])) > 4, "the text loops: it would prove little"
    assert decode(lineup, peer).outputs == expected


def test_plain_generation_takes_one_forward_per_token_like_ours(lineup: Lineup) -> None:
    ours, theirs = decode(lineup, "none"), decode(lineup, "transformers")
    assert (ours.target_forwards, ours.prefill_forwards) == (24, 1)
    assert (theirs.target_forwards, theirs.prefill_forwards, theirs.draft_forwards) == (24, 0, 0)


def test_speculating_peers_take_fewer_target_forwards_and_their_draft_forwards_are_counted_apart(lineup: Lineup) -> None:
    for peer in ("transformers-assisted", "transformers-early-exit"):
        found = decode(lineup, peer)
        assert found.draft_forwards > 0, peer
        assert found.draft_seconds > 0, peer
        assert found.target_forwards <= 24, peer
    assert decode(lineup, "transformers-assisted").target_forwards < 24


def test_time_in_forwards_is_part_of_the_wall_time(lineup: Lineup) -> None:
    for run in lineup.runs:
        found = run.decode([PROMPT], [24])
        assert 0 < found.target_seconds + found.draft_seconds < found.seconds, run.name


def test_all_stop_at_the_same_end_of_sequence_token(lineup: Lineup) -> None:
    (text,) = decode(lineup, "none").outputs
    end = text[7]
    lineup.target.eos_token_ids = frozenset([end])
    assert lineup.peer_model is not None
    lineup.peer_model.eos_token_ids = frozenset([end])
    expected = text[: text.index(end) + 1]
    assert {r.name: r.decode([PROMPT], [24]).outputs for r in lineup.runs} == {r.name: [expected] for r in lineup.runs}


def test_the_early_exit_leaves_the_model_whole(lineup: Lineup) -> None:
    assert lineup.peer_model is not None
    before = lineup.peer_model.logits(PROMPT)
    decode(lineup, "transformers-early-exit")
    assert torch.equal(lineup.peer_model.logits(PROMPT), before)


def test_a_peer_without_its_draft_model_or_its_layers_is_skipped_with_the_reason(settings: Make) -> None:
    wanted = ("transformers-assisted", "transformers-early-exit:4", "transformers")
    found = line_up(settings(methods=("none",), peers=wanted), lambda _: None)
    assert [r.name for r in found.runs] == ["none", "transformers"]
    assert "needs a draft model" in found.skipped["transformers-assisted"]
    assert "cannot exit after layer 4 of 4" in found.skipped["transformers-early-exit:4"]


def test_a_number_of_layers_sets_the_exit(lineup: Lineup) -> None:
    assert lineup.peer_model is not None
    exits = {
        name: PeerRun(name, lineup.peer_model, None, 0.0, None)._extra for name in ("transformers-early-exit", "transformers-early-exit:3")
    }
    assert [e["assistant_early_exit"] for e in exits.values()] == [1, 3]
    with pytest.raises(Unable):
        PeerRun("transformers-early-exit:9", lineup.peer_model, None, 0.0, None)


def test_sampled_peers_repeat_with_their_seed(lineup: Lineup) -> None:
    assert lineup.peer_model is not None
    one, same, other = (PeerRun("transformers", lineup.peer_model, None, 1.5, seed).decode([PROMPT], [24]).outputs for seed in (1, 1, 2))
    assert one == same
    assert one != other
