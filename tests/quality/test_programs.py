"""Code in answers: vectors by hand."""

from __future__ import annotations

import pytest

from paceline.quality import programs

STUB = 'import math\n\n\ndef helper(x):\n    return 2 * x\n\n\ndef area(r):\n    """The area."""\n'
WHOLE = "def area(r):\n    return math.pi * r * r"
BODY = "    return math.pi * r * r"

ANSWERS = [
    (f"Sure:\n```python\n{WHOLE}\n```\nDone.", WHOLE),
    (f"```\n{WHOLE}\n```", WHOLE),
    (f"```python\n{WHOLE}", WHOLE),
    (f"```python\nprint(1)\n```\nthen\n```python\n{WHOLE}\n```", WHOLE),
    (f"```python\ndef other():\n    pass\n```\nthen\n```python\n{WHOLE}\n```", WHOLE),
    (f"```bash\npip install x\n```\n```python\n{WHOLE}\n```", WHOLE),
    (f"  ```py\n{WHOLE}\n  ```", WHOLE),
    (f"Here it is.\n{WHOLE}\n\nIt multiplies (by pi.", WHOLE),
    (f"PI = 3\n{WHOLE}\n# end", f"PI = 3\n{WHOLE}\n# end"),
    ("I cannot do that.", None),
    ("", None),
]


@pytest.mark.parametrize(("text", "code"), ANSWERS, ids=[repr(t)[:40] for t, _ in ANSWERS])
def test_the_code_of_an_answer_is_found(text: str, code: str | None) -> None:
    found = programs.extract(text, ["area"])
    assert (found and found.rstrip()) == code


def test_the_first_block_is_taken_if_none_defines_what_is_wanted() -> None:
    assert programs.extract("```python\nx = 1\n```\n```python\ny = 2\n```", ["area"]) == "x = 1\n"


@pytest.mark.parametrize("text", [f"```python\n{WHOLE}\n```", f"```python\nimport math\n{WHOLE}\n```", f"```python\n{BODY}\n```"])
def test_a_chats_answer_to_a_stub_runs_with_what_stood_before_it(text: str) -> None:
    assert area_of(programs.completed(STUB, "area", text, chat=True)) == pytest.approx(12.566, abs=1e-3)


@pytest.mark.parametrize("rest", ["", "\n\nprint(area(", "\n\n\ndef area_of_square(r):\n    return r * r\n", "\n```\nThat is it."])
def test_a_continuation_ends_with_the_function(rest: str) -> None:
    assert area_of(programs.completed(STUB, "area", BODY + rest, chat=False)) == pytest.approx(12.566, abs=1e-3)


def area_of(parts: list[str] | None) -> float:
    assert parts is not None
    space: dict[str, object] = {}
    for part in parts:
        exec(part, space)
    area = space["area"]
    assert callable(area)
    return float(area(2))


def test_a_future_import_may_stand_at_the_top_of_an_answer() -> None:
    text = f"```python\nfrom __future__ import annotations\n{WHOLE}\n```"
    assert area_of(programs.completed(STUB, "area", text, chat=True)) > 12


def test_prose_is_no_code_in_a_chat_and_a_body_elsewhere() -> None:
    assert programs.completed(STUB, "area", "I cannot do that.", chat=True) is None
    assert programs.completed(STUB, "area", "    pass", chat=False) == [STUB + "    pass"]


def test_the_tested_functions_are_those_that_tests_call() -> None:
    code = "class Node:\n    pass\ndef helper(x):\n    pass\ndef solve(x):\n    pass\n"
    assert programs.tested_names(code, ["assert solve(Node()) == 1", "assert solve (2) == helpers(3)"]) == {"Node", "solve"}
