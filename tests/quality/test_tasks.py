"""Each task asks, and grades a right, a wrong and a missing answer."""

from __future__ import annotations

import pytest

from paceline.quality.tasks import TASKS

STUB = 'def add(a, b):\n    """The sum."""\n'
HUMANEVAL = {"entry_point": "add", "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n    assert candidate(2, 2) == 4\n"}
MBPP = {"test_list": ["assert add(1, 2) == 3"], "test_setup_code": "import math", "code": "def add(a, b):\n    return a + b"}
RIGHT, WRONG = "```python\ndef add(a, b):\n    return a + b\n```", "```python\ndef add(a, b):\n    return a - b\n```"

GRADES = [
    ("gsm8k", True, {"answer": "18"}, "so 9 * 2\n#### 18", "correct"),
    ("gsm8k", True, {"answer": "18"}, "so 9 + 2\n#### 11", "wrong"),
    ("gsm8k", True, {"answer": "18"}, "I do not know", "no_answer"),
    ("gsm8k", False, {"answer": "18"}, " The answer is 18.\n\nQuestion: What is 2 + 3?\nAnswer: 5", "correct"),
    ("gsm8k", True, {"answer": "18"}, "It is 18.\nQuestion: is 5 right?", "wrong"),
    ("humaneval", True, HUMANEVAL, RIGHT, "correct"),
    ("humaneval", True, HUMANEVAL, WRONG, "wrong"),
    ("humaneval", True, HUMANEVAL, "I would add them.", "no_answer"),
    ("humaneval", True, HUMANEVAL, "```python\ndef plus(a, b):\n    return a + b\n```", "wrong"),
    ("humaneval", False, HUMANEVAL, "    return a + b\n\nprint(add(1", "correct"),
    ("humaneval", True, HUMANEVAL, "```python\ndef add(a, b):\n    return open('/etc/passwd')\n```", "refused"),
    ("humaneval", True, HUMANEVAL, "```python\nimport sys\ndef add(a, b):\n    sys.exit(0)\n```", "exited"),
    ("mbpp", True, MBPP, RIGHT, "correct"),
    ("mbpp", True, MBPP, WRONG, "wrong"),
    ("mbpp", True, MBPP, "```python\ndef add(a, b)\n    return a + b\n```", "error"),
    ("mbpp", True, MBPP, "no code", "no_answer"),
    ("mbpp", True, MBPP, "```python\ndef add(a, b):\n    return math.floor(a + b)\n```", "correct"),
]


@pytest.mark.parametrize(("task", "chat", "reference", "text", "outcome"), GRADES, ids=[f"{g[0]}: {g[3][:25]!r}" for g in GRADES])
def test_an_answer_gets_its_grade(task: str, chat: bool, reference: dict[str, object], text: str, outcome: str) -> None:
    with TASKS[task].grader(chat) as grade:
        found = grade(STUB, reference, text)
    assert found.outcome == outcome, f"{found}"
    assert found.correct is (outcome == "correct")


@pytest.mark.parametrize(
    ("chat", "text", "outcome"),
    [
        (True, r"so \boxed{\frac{1}{2}}", "correct"),
        (True, r"so \boxed{2}", "wrong"),
        (True, "", "no_answer"),
        (False, " It is $0.5$.\n\nProblem: What is 1+1?\nSolution: $2$", "correct"),
    ],
)
def test_a_formula_gets_its_grade(chat: bool, text: str, outcome: str) -> None:
    pytest.importorskip("math_verify")
    with TASKS["math500"].grader(chat) as grade:
        found = grade("What is half of one?", {"answer": "0.5" if "Problem" in text else r"\frac{1}{2}"}, text)
    assert found.outcome == outcome, f"{found}"


@pytest.mark.parametrize("task", TASKS)
def test_a_question_with_braces_is_asked_as_it_is(task: str) -> None:
    question = "Is {x} in {question}?"
    for chat in (True, False):
        assert question in TASKS[task].prompt(question, chat)


def test_a_stub_is_continued_as_it_is() -> None:
    assert TASKS["humaneval"].prompt(STUB, chat=False) == STUB
