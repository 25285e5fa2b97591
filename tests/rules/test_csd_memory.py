"""The correction memory: what it nominates, how it fades and stays bounded, and its file, which is refused if it is not right."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from paceline import engine, methods
from paceline.errors import CheckpointMismatch, InvalidRequest, PacelineError
from paceline.origin import Origin, origin_of
from paceline.rules import memory_file
from paceline.rules.memory import MOST, Memory, SharedMemory, both_ways, pack, unpack

from .. import tiny
from ..matrix import PROMPTS, request

ORIGIN = Origin("big", "small", "abcd", tiny.VOCAB, (1.0, 2.0), (3.0,))
COUNTS = {pack(1, 2): 9, pack(2, 1): 4, pack(5, 60): 7}
MADE = Memory.calibration(COUNTS, ORIGIN, "toys")


@pytest.fixture
def file(tmp_path):
    memory_file.save(MADE, tmp_path / "memory.safetensors", {"tau": 0.01})
    return tmp_path / "memory.safetensors"


def test_a_key_holds_both_tokens():
    assert unpack(pack(151_935, 7)) == (151_935, 7)


def test_a_calibration_counts_its_rejections():
    assert (MADE.calibrated, MADE.total) == (20, 20.0)


def test_an_empty_memory_nominates_nothing():
    assert not Memory().nominates((pack(1, 2),), 0)


@pytest.mark.parametrize(("more", "nominated"), [(2, False), (3, True)])
def test_sightings_of_the_request_itself_count(more, nominated):
    assert MADE.nominates((pack(2, 1),), 6, more=more, of=more, recent=False) is nominated


def test_pairs_that_are_asked_for_together_are_counted_together():
    memory = Memory.calibration({pack(1, 2): 4, pack(2, 1): 3, pack(5, 6): 93})
    assert both_ways(pack(1, 2)) == (pack(1, 2), pack(2, 1))
    for recent in (False, True):
        assert memory.nominates(both_ways(pack(2, 1)), 6, recent=recent)
        assert not memory.nominates(both_ways(pack(2, 1)), 7, recent=recent)
        assert not memory.nominates((pack(1, 2),), 6, recent=recent)


def test_a_pair_that_is_no_longer_seen_loses_its_place_though_its_count_stays():
    later = MADE
    for _ in range(20):
        later = later.learned({pack(30, 31): 10})
    assert later.counts[pack(1, 2)] == 9
    assert MADE.nominates((pack(1, 2),), 6)
    assert not later.nominates((pack(1, 2),), 6)
    assert later.nominates((pack(1, 2),), 6, recent=False)


def test_a_table_that_only_grows_enables_ever_more_pairs_and_a_recent_share_does_not():
    memory, rare = Memory.calibration({pack(0, t): 10 for t in range(1, 11)}), pack(40, 41)
    for _ in range(300):
        memory = memory.learned({**{pack(0, t): 1 for t in range(1, 11)}, rare: 1} if _ % 30 == 0 else {pack(0, 1): 10})
    assert memory.nominates((rare,), 6, recent=False), "the plain count lets it in"
    assert not memory.nominates((rare,), 6), "one in three hundred sightings is not frequent"


def test_half_of_the_weight_is_gone_after_as_many_rejections_as_the_calibration_saw():
    later = MADE.learned({pack(50, 51): 20})
    assert later.weights[pack(1, 2)] == pytest.approx(4.5)
    assert later.total == pytest.approx(30)


def test_a_full_table_drops_the_lightest_pairs_and_gives_none_of_their_counts_away():
    full = MADE.learned({pack(9, 9): 1}, capacity=3)
    assert set(full.counts) == set(COUNTS), f"{full.counts}"
    again = full.learned({pack(9, 9): 5}, capacity=3)
    assert again.counts[pack(9, 9)] == 5, "it begins at zero again"


def test_a_count_stops_at_its_most():
    assert Memory({1: MOST - 1}, {1: 1.0}, 1.0).learned({1: 5}).counts[1] == MOST


def test_one_request_with_crafted_rejections_enables_nothing_for_others():
    shared = SharedMemory(Memory())
    for _ in range(4):
        shared.add({pack(1, 2): 1000})
    assert shared.snapshot == Memory()
    shared.add({pack(1, 2): 1})
    assert shared.snapshot.counts == {pack(1, 2): 4001}


def test_a_shared_memory_is_bounded_while_it_waits():
    shared = SharedMemory(Memory(), distinct=2, capacity=10)
    for key in range(1000):
        shared.add({key: 1})
    assert len(shared._waiting) == 10


# the file


def test_a_memory_comes_back_from_its_file_as_it_was(file):
    assert memory_file.load(file) == MADE


def test_a_file_holds_no_text_but_its_header_names_the_models(file):
    with safe_open(file, "pt") as opened:
        header = json.loads(opened.metadata()["header"])
        assert set(opened.keys()) == {"keys", "counts", "weights"}
    assert (header["origin"]["target"], header["domain"], header["used"]) == ("big", "toys", {"tau": 0.01})


def test_an_empty_memory_has_a_file_too(tmp_path):
    memory_file.save(Memory(), tmp_path / "empty")
    assert memory_file.load(tmp_path / "empty") == Memory()


def test_nothing_is_left_where_a_file_cannot_be_written(tmp_path):
    (tmp_path / "taken").mkdir()
    with pytest.raises(PacelineError, match="cannot write"):
        memory_file.save(MADE, tmp_path / "taken")
    assert [p.name for p in tmp_path.iterdir()] == ["taken"]


def altered(file, tensors=None, header=None, checksum=True):
    """The same file with other tensors or another header, and the checksum that fits them."""
    with safe_open(file, "pt") as opened:
        told = json.loads(opened.metadata()["header"])
        found = {name: opened.get_tensor(name) for name in opened.keys()} | (tensors or {})  # noqa: SIM118
    told |= {"checksum": memory_file.checksum(found)} if checksum else {}
    save_file(found, file, {"schema": memory_file.SCHEMA, "header": json.dumps(told | (header or {}))})


BROKEN = {
    "cut short": lambda f: f.write_bytes(f.read_bytes()[:60]),
    "no safetensors": lambda f: f.write_bytes(b"hello"),
    "empty": lambda f: f.write_bytes(b""),
    "another kind of file": lambda f: save_file({"weight": torch.zeros(2)}, f),
    "a wrong checksum": lambda f: altered(f, {"counts": torch.tensor([900, 4, 7])}, checksum=False),
    "a count below one": lambda f: altered(f, {"counts": torch.tensor([9, 0, 7])}),
    "a token beyond the vocabulary": lambda f: altered(f, {"keys": torch.tensor([pack(1, 2), pack(2, 1), pack(5, 61)])}),
    "a negative key": lambda f: altered(f, {"keys": torch.tensor([-1, 1, 2])}),
    "a pair twice": lambda f: altered(f, {"keys": torch.tensor([1, 1, 2])}),
    "fewer counts than pairs": lambda f: altered(f, {"counts": torch.tensor([9, 4])}),
    "a weight above its count": lambda f: altered(f, {"weights": torch.tensor([9.0, 4.0, 8.0], dtype=torch.float64)}),
    "a weight that is no number": lambda f: altered(f, {"weights": torch.tensor([9.0, 4.0, torch.nan], dtype=torch.float64)}),
    "a total below its weights": lambda f: altered(f, header={"total": 3.0}),
    "no total": lambda f: altered(f, header={"total": None}),
    "a header of another form": lambda f: altered(f, header={"origin": {"target": "big"}}),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_damaged_file_is_refused_in_one_line(file, name):
    BROKEN[name](file)
    with pytest.raises(CheckpointMismatch, match="is no memory that can be used") as error:
        memory_file.load(file)
    assert "\n" not in str(error.value)
    assert "paceline calibrate csd" in str(error.value)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(InvalidRequest, match="there is no memory"):
        memory_file.load(tmp_path / "none")


# belonging


def build(origin, tmp_path, **draft):
    memory_file.save(replace(MADE, origin=origin), tmp_path / "m")
    options = methods.Options(draft_model=tiny.draft(**draft), memory=tmp_path / "m")
    return methods.build("draft_model/csd", tiny.target(), options)


@pytest.fixture(scope="module")
def own():
    return origin_of(tiny.target(), tiny.draft())


def test_a_memory_of_the_pair_is_taken(own, tmp_path):
    drafter, rule = build(own, tmp_path)
    seq = request(PROMPTS["short"], 20)
    engine.generate(tiny.target(), drafter, rule, [seq])
    assert seq.ledgers["csd"].memory.counts == COUNTS


OTHERS = {
    "tokenizer": {"tokenizer": "ffff"},
    "vocabulary size": {"vocab_size": 70},
    "target": {"target_marks": tuple(range(16))},
    "draft model": {"draft_marks": tuple(range(16))},
    "drafter": {"draft": "lookup", "draft_marks": ()},
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_memory_of_another_pair_is_refused_with_what_differs(own, tmp_path, name):
    with pytest.raises(CheckpointMismatch, match=f"the memory belongs to .* its {name} is"):
        build(replace(own, **OTHERS[name]), tmp_path)


def test_a_memory_for_another_draft_model_of_the_same_kind_is_refused(own, tmp_path):
    with pytest.raises(CheckpointMismatch, match="its draft model is"):
        build(own, tmp_path, noise=0.3)
