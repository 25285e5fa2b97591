"""Numbers in answers: vectors by hand."""

from __future__ import annotations

import pytest

from paceline.quality import figures

ENDS = [
    ("She sells 16 - 3 - 4 = 9 eggs.\n#### 18", "18"),
    ("#### 5\nOr rather\n#### 7 dollars, see 3 above", "7"),
    ("#### 3 * 5 = 15", "15"),
    ("First \\boxed{3}, so the total is \\boxed{1{,}234} and not 5.", "1,234"),
    ("It is \\boxed{\\$18\\text{ dollars}} for 2 days", "$18"),
    ("The answer is 12 eggs per day for 7 days", "12"),
    ("The final answer is:\n\n**42**\n\nI used 3 steps.", "42"),
    ("To answer this we need 5 steps and get 9", "9"),
    ("Answer: 2 + 2 = 4", "4"),
    ("so she has $1,234.50.", "$1,234.50"),
    ("that leaves 5-3", "3"),
    ("it falls to -7 degrees", "-7"),
    ("it falls to \u22127 degrees", "-7"),
    ("a pound of x2 costs 3", "3"),
    ("#### nothing\nthe sum was 8", "8"),
    ("\\boxed{unclosed 4", "4"),
    ("no number at all", None),
    ("", None),
]


@pytest.mark.parametrize(("text", "number"), ENDS, ids=[repr(t)[:40] for t, _ in ENDS])
def test_the_final_number_is_found(text: str, number: str | None) -> None:
    assert figures.extract(text) == number


@pytest.mark.parametrize(
    ("reference", "answer", "same"),
    [
        ("18", "18.00", True),
        ("18", "$18", True),
        ("1234", "1,234", True),
        ("-3", "-$3", True),
        ("-3", "3", False),
        ("0.5", "1/2", True),
        ("0.1", "0.1000000000000000000000001", False),
        ("18", "18.", True),
        ("18", "181", False),
        ("18", "1,8", False),
        ("3", "3/0", False),
        ("3", "9" * 5000, False),
        ("what", "what", False),
    ],
)
def test_numbers_are_compared_by_what_they_are_worth(reference: str, answer: str, same: bool) -> None:
    assert figures.equal(reference, answer) is same, f"{figures.value(reference)} and {figures.value(answer)}"


@pytest.mark.parametrize(
    ("text", "box"),
    [
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{1} and \boxed{2}", "2"),
        (r"\boxed{1} and \boxed{2", "1"),
        (r"\fbox{1}", None),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{}", ""),
        ("none", None),
    ],
)
def test_the_last_closed_box_is_taken_with_its_braces_balanced(text: str, box: str | None) -> None:
    assert figures.last_box(text) == box
