"""Transformers' own ways to generate, against ours."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from paceline.bench.lineup import Lineup
from paceline.bench.peers.common import Unable
from paceline.bench.peers.names import FAMILIES
from paceline.bench.peers.of_transformers import Peer
from paceline.bench.runs import Decoded
from paceline.bench.settings import Settings
from paceline.cli.bench import Peers

from .conftest import lined_up

NAMES = FAMILIES["transformers"].names
PROMPT = [0, 84, 104, 101, 32, 84, 104, 101, 32, 2, 1]
Make = Callable[..., Settings]


@pytest.fixture
def lineup(settings: Make, draft_model: str) -> Lineup:
    return lined_up(settings(methods=("none", "draft_model"), peers=NAMES, draft_model=draft_model))


@pytest.fixture
def peer(model: str, draft_model: str) -> Peer:
    told = {"model": model, "revision": None, "draft": draft_model, "dtype": "float32", "device": "cpu", "threads": 1, "eos": [2]}
    return Peer(told)


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


def test_all_stop_at_the_same_end_of_sequence_token(lineup: Lineup, peer: Peer) -> None:
    (text,) = decode(lineup, "none").outputs
    end = text[7]
    expected = text[: text.index(end) + 1]
    peer.eos = [end]
    found = {n: peer.decode(n, [PROMPT], [24], temperature=0.0, seed=0, batch_size=1).outputs for n in NAMES}
    assert found == {name: [expected] for name in NAMES}


def test_a_batch_of_a_peer_gives_each_row_its_own_text_up_to_its_own_limit(peer: Peer) -> None:
    prompts, limits = [PROMPT, PROMPT[3:], [5, 6]], [24, 9, 12]
    how = {"temperature": 0.0, "seed": 0}
    alone = [peer.decode("transformers", [p], [n], **how, batch_size=1).outputs[0] for p, n in zip(prompts, limits, strict=True)]
    both = peer.decode("transformers", prompts, limits, **how, batch_size=2)
    assert both.outputs == alone
    assert both.target_forwards == 24 + 12, "two prompts at once, then the third"


def test_the_early_exit_leaves_the_model_whole(peer: Peer) -> None:
    before = peer.logits(PROMPT)
    peer.decode("transformers-early-exit", [PROMPT], [24], temperature=0.0, seed=0, batch_size=1)
    assert peer.logits(PROMPT) == before


@pytest.mark.parametrize(
    ("name", "batch_size", "why"),
    [
        ("transformers-assisted", 1, "needs a draft model"),
        ("transformers-early-exit:4", 1, "cannot exit after layer 4 of 4"),
        ("transformers-lookup", 2, "one sequence at a time, and the batch size is 2"),
    ],
)
def test_what_a_peer_does_not_offer_is_said(peer: Peer, name: str, batch_size: int, why: str) -> None:
    peer.draft = None
    peer.prepare("transformers", temperature=1.0, batch_size=3)
    with pytest.raises(Unable, match=why):
        peer.prepare(name, temperature=0.0, batch_size=batch_size)


def test_a_number_of_layers_sets_the_exit(peer: Peer) -> None:
    names = ("transformers-early-exit", "transformers-early-exit:3")
    exits = [peer._arguments(name, [PROMPT], 4, 0.0)["generation_config"].assistant_early_exit for name in names]
    assert exits == [1, 3]


def test_sampled_peers_repeat_with_their_seed(peer: Peer) -> None:
    one, same, other = (peer.decode("transformers", [PROMPT], [24], temperature=1.5, seed=s, batch_size=1).outputs for s in (1, 1, 2))
    assert one == same
    assert one != other


def test_a_peer_is_skipped_in_the_combinations_that_it_cannot_do(settings: Make) -> None:
    chosen = settings(methods=("none",), peers=("transformers", "transformers-lookup"))
    found = lined_up(chosen, batch_sizes=(1, 2))
    names = ["none batch=1", "none batch=2", "transformers batch=1", "transformers-lookup batch=1", "transformers batch=2"]
    assert [r.name for r in found.runs] == names
    assert list(found.skipped) == ["transformers-lookup batch=2"]


def test_the_help_names_every_peer_that_is_no_variant() -> None:
    text = str(Peers.__metadata__[0].help)
    assert [name for name in FAMILIES if name not in text] == []
