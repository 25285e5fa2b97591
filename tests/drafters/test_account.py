"""What may still be lost, where something was paid once."""

from __future__ import annotations

import pytest

from paceline.drafters.account import CREDIT, Account


def gained() -> Account:
    account = Account(1.0)
    for _ in range(5):
        account.add(1.0, 2.0)
    return account


def test_what_is_paid_once_uses_up_what_was_gained_and_no_more() -> None:
    plain, little, much = gained(), gained(), gained()
    plain.add(1.0, 1.0)
    little.add(4.0, 1.0, once=3.0)
    much.add(101.0, 1.0, once=100.0)
    assert plain.slack - little.slack == pytest.approx(3.0)
    assert 0.8 * CREDIT < much.slack <= CREDIT, "the credit stays"


@pytest.mark.parametrize("plainly", [False, True])
def test_what_is_paid_once_is_told_but_says_nothing_of_later_rounds(plainly: bool) -> None:
    account, without = gained(), gained()
    if plainly:
        account.add_plain(21.0, 20.0, 1.0, once=20.0)
        without.add_plain(1.0, 0.0, 1.0)
    else:
        account.add(21.0, 1.0, once=20.0)
        without.add(1.0, 1.0)
    assert account.speedup == pytest.approx(without.speedup, rel=0.01 if not plainly else 0.8)
    assert account.total_spent - without.total_spent == pytest.approx(20.0)
