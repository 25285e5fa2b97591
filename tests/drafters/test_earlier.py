"""What earlier requests have shown as a whole."""

from __future__ import annotations

from collections import deque

import pytest

from paceline.drafters.earlier import FIRST, Answer, Earlier


def of(*lengths: int) -> Earlier:
    return Earlier(deque(map(Answer, lengths)))


def test_before_any_is_seen_a_guess_stands_for_it() -> None:
    earlier = Earlier()
    assert earlier.rest(earlier.begin(), 1000) == sum(FIRST) / len(FIRST)


@pytest.mark.parametrize(
    ("produced", "room", "rest"),
    [(0, 1000, 200 / 3), (20, 1000, 75), (20, 100, 65), (20, 10, 10), (150, 1000, 150), (150, 30, 30)],
    ids=["new", "longer ones only", "room", "all beyond the room", "longer than all", "longer than all, and room"],
)
def test_the_rest_is_what_longer_answers_had_beyond(produced: int, room: int, rest: float) -> None:
    assert of(10, 50, 140).rest(Answer(produced), room) == pytest.approx(rest)


def test_the_oldest_are_forgotten() -> None:
    earlier = Earlier()
    for _ in range(40):
        earlier.begin().tokens = 5
    assert earlier.rest(Answer(), 1000) == 5
