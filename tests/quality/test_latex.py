"""LaTeX answers: vectors by hand, and answers that keep an algebra system busy."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from paceline.errors import PacelineError
from paceline.quality import latex

pytest.importorskip("math_verify")


@pytest.fixture(scope="module")
def judge() -> Iterator[latex.Judge]:
    with latex.Judge() as made:
        yield made


@pytest.mark.parametrize(
    ("reference", "answer", "same"),
    [
        (r"\frac{1}{2}", "0.5", True),
        (r"\frac{3}{4}", r"\dfrac34", True),
        (r"\left( 3, \frac{\pi}{2} \right)", r"(3, \pi/2)", True),
        (r"\left( 3, \frac{\pi}{2} \right)", r"(\pi/2, 3)", False),
        ("p - q", "-q + p", True),
        ("p - q", "q - p", False),
        ("1,-2", "-2, 1", True),
        (r"12", r"12 \text{ cm}", True),
        (r"36^\circ", "36", True),
        (r"\text{Evelyn}", r"\text{Evelyn}", True),
        (r"2\sqrt{113}", r"\sqrt{452}", True),
        (r"2\sqrt{113}", "21", False),
        ("5", "", False),
        ("5", "((((((", False),
        (r"\begin{pmatrix} -1/3 \\ 2/3 \end{pmatrix}", r"\begin{pmatrix} -\frac13 \\ \frac23 \end{pmatrix}", True),
    ],
)
def test_answers_are_compared_as_mathematics(judge: latex.Judge, reference: str, answer: str, same: bool) -> None:
    assert judge.equal(reference, answer) is same


def test_an_answer_without_a_box_is_looked_for_in_the_text(judge: latex.Judge) -> None:
    assert judge.equal("7", "Therefore the final answer is $7$.", boxed=False) is True
    assert judge.equal("7", "Therefore the final answer is $8$.", boxed=False) is False


def test_the_box_is_the_answer_and_else_the_end_of_the_text() -> None:
    assert latex.extract(r"$1$ so \boxed{ \frac{1}{2} } and $3$") == r"\frac{1}{2}"
    assert latex.extract("x" * 1000 + " is $7$") == ("x" * 1000 + " is $7$")[-300:]
    assert (latex.extract("  "), latex.extract(r"\boxed{}")) == (None, None)


def test_a_comparison_that_takes_too_long_is_given_up_and_the_next_one_works() -> None:
    with latex.Judge() as judge:
        assert judge.equal("2", "1 + 1") is True  # it has started
        judge._seconds = 0.01
        assert judge.equal("10", "10^{10^{10}}") is None
        judge._seconds = latex.SECONDS
        assert judge.equal("2", "1 + 1") is True


def test_the_process_ends_with_the_block() -> None:
    with latex.Judge() as judge:
        judge.equal("2", "1 + 1")
        process = judge._process
        assert process is not None
        assert process.poll() is None
    assert process.poll() is not None


def test_without_the_library_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latex, "find_spec", lambda name: None)
    with pytest.raises(PacelineError, match=r"needs math-verify .* pip install 'paceline\[eval\]'"):
        latex.Judge()
