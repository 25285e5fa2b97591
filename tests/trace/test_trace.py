"""What the trace tells of each round, and the page that shows it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paceline import api
from paceline.draft import Draft
from paceline.engine import Round
from paceline.errors import PacelineError
from paceline.rules.csd import random_rescue
from paceline.rules.csd_config import RandomRescueConfig
from paceline.rules.ledger import Event
from paceline.rules.match import match
from paceline.sampling import SamplingParams
from paceline.targets.load import load
from paceline.trace.nodes import next_token, nodes
from paceline.trace.story import pieces, tell
from paceline.trace.write import page, write
from paceline.tree import Tree

from ..cli.conftest import save_model
from ..drafts import Planted

V = 8
TREE = Tree((7, 1, 2, 3, 4, 5), (-1, 0, 0, 2, 3, 1))  # 7 -> 1 -> 5, 7 -> 2 -> 3 -> 4
LENGTH = 10  # tokens before the round


def told(
    path: list[int], tokens: list[int], *events: Event, finish: str | None = None, logits: Any = None, **draft: Any
) -> list[dict[str, Any]]:
    round_ = Round(SimpleNamespace(), tokens, len(tokens) - 1, Draft(TREE, **draft), path, finish)  # type: ignore[arg-type]
    rows = torch.zeros(len(TREE), V) if logits is None else logits
    return nodes(round_, rows, {"easd": list(events)}, LENGTH, str)


def states(path: list[int], tokens: list[int], *events: Event, finish: str | None = None) -> list[str]:
    return [node["state"] for node in told(path, tokens, *events, finish=finish)]


def test_nodes_are_accepted_rejected_or_behind_a_rejected_one() -> None:
    assert states([0, 2, 3], [2, 3, 6]) == ["root", "rejected", "accepted", "accepted", "rejected", "unreached"]


def test_what_was_accepted_behind_the_end_is_cut() -> None:
    assert states([0, 2, 3, 4], [2, 3], finish="stop")[2:5] == ["accepted", "accepted", "cut"]
    assert states([0, 2, 3, 4], [2, 3, 4], finish="stop")[2:5] == ["accepted"] * 3


def test_a_rescue_and_a_veto_are_told_from_the_ledgers() -> None:
    rescue, veto = Event(LENGTH + 1, drafted=3, target=6), Event(LENGTH + 2, drafted=4, target=6)
    assert states([0, 2, 3], [2, 3, 6], rescue, veto)[2:5] == ["accepted", "rescued", "vetoed"]
    refused = Event(LENGTH + 1, drafted=3, target=6, refusal="gate")
    assert states([0, 2, 3], [2, 3, 6], refused)[3] == "accepted"


@pytest.mark.parametrize(
    ("path", "tokens", "events", "says"),
    [
        ([0, 2, 3, 4], [2, 3, 4, 6], [], "bonus"),
        ([0, 2], [2, 6], [], "recovered"),
        ([0, 2], [2, 6], [Event(LENGTH + 1, drafted=3, target=6)], "vetoed"),
        ([0, 2, 3, 4], [2, 3], [], None),
    ],
)
def test_the_last_token_is_a_bonus_recovered_or_in_the_place_of_a_veto(path: Any, tokens: Any, events: Any, says: str | None) -> None:
    round_ = Round(SimpleNamespace(), tokens, len(tokens) - 1, Draft(TREE), path, None)  # type: ignore[arg-type]
    assert next_token(round_, {"easd": events}, LENGTH) == says


def test_a_node_has_the_targets_opinion_of_it_from_its_parent_and_the_entropy_behind_it() -> None:
    logits = torch.full((len(TREE), V), -1e9)
    logits[2, [3, 6]] = torch.tensor([0.6, 0.4]).log()  # after token 2
    node = told([0, 2, 3], [2, 3, 6], logits=logits)[3]
    assert (node["p"], node["margin"]) == (pytest.approx(0.6, abs=1e-5), 0)
    behind = told([0, 2, 3], [2, 3, 6], logits=logits)[2]
    assert behind["entropy"] == pytest.approx(0.67301, abs=1e-5)
    assert [(text, p) for text, p in behind["top"][:2]] == [("3", pytest.approx(0.6, abs=1e-5)), ("6", pytest.approx(0.4, abs=1e-5))]


def test_q_is_named_after_what_it_is() -> None:
    rows = torch.log(torch.tensor([[0.5, 0.1, 0.2, 0.1, 0.1, 0, 0, 0]]))
    assert nodes(_round(Draft(TREE)), torch.zeros(6, V), {}, LENGTH, str)[2]["q"] is None
    stated = nodes(_round(Draft(TREE, logits=rows, rows=(0, -1, -1, -1, -1, -1))), torch.zeros(6, V), {}, LENGTH, str)
    assert (stated[2]["q"], stated[2]["q_is"]) == (pytest.approx(0.2), "drawn from")
    scored = nodes(_round(Draft(TREE, scores=(0.0, -1.0, -0.5, -0.75, -1.0, -2.0))), torch.zeros(6, V), {}, LENGTH, str)
    assert (scored[3]["q"], scored[3]["q_is"]) == (pytest.approx(0.7788, abs=1e-4), "estimated")


def _round(draft: Draft) -> Round:
    return Round(SimpleNamespace(), [6], 0, draft, [0], None)  # type: ignore[arg-type]


class Bytes:
    def decode(self, ids: Any) -> str:
        return bytes(ids).decode("utf-8", errors="replace")


def test_a_character_of_several_tokens_belongs_to_its_last_one() -> None:
    assert pieces(Bytes(), list("né€".encode())) == ["n", "", "é", "", "", "€"]
    assert pieces(Bytes(), list("a€".encode())[:-1]) == ["a", "", "\ufffd"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def target(folder: str) -> Any:
    return load(folder, dtype="float32", device="cpu", weights="plain")


def decode(target: Any, rule: Any) -> tuple[Any, dict[str, Any]]:
    plain = api.request(target, "the rain falls", SamplingParams(max_new_tokens=30))
    engine_text = list(api.stream(target, plain, *api.method_for(target, "none")))
    seq = api.request(target, "the rain falls", SamplingParams(max_new_tokens=30))
    assert engine_text
    return plain, tell(target, Planted(lambda prompt: plain.output), rule, seq)


def test_the_story_is_that_of_the_answer(target: Any) -> None:
    plain, story = decode(target, match)
    assert "".join(story["pieces"]) == target.tokenizer.decode(plain.output)
    assert sum(r["count"] for r in story["rounds"]) == story["tokens"] == len(plain.output) == 30
    assert [r["start"] for r in story["rounds"]] == [sum(r["count"] for r in story["rounds"][:i]) for i in range(len(story["rounds"]))]
    assert {"accepted", "rejected", "unreached"} <= {n["state"] for r in story["rounds"] for n in r["nodes"]}
    for r in story["rounds"]:
        for i in r["path"][1:]:
            assert r["nodes"][i]["margin"] == 0, "greedy: what is accepted is the target's own"


def test_rescues_are_told(target: Any) -> None:
    always = random_rescue(match, RandomRescueConfig(rate=0.5, guards=False, streak=None, max_nats_per_1k=None))
    _, story = decode(target, always)
    rescued = [n for r in story["rounds"] for n in r["nodes"] if n["state"] == "rescued"]
    assert rescued
    assert all(n["margin"] > 0 for n in rescued)


EVIL = "</script><script>alert(1)</script> <!-- & \u2028"


def test_no_text_of_a_prompt_becomes_markup(target: Any) -> None:
    made = page({"prompt": EVIL})
    assert "alert(1)</script> <" not in made
    data = re.search(r"const story = (.*);\n", made)
    assert data is not None
    assert json.loads(data[1]) == {"prompt": EVIL}


def test_a_page_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(PacelineError, match="cannot be written"):
        write({}, tmp_path / "no" / "page.html")


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update "
    "--disable-sync"
)


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium to open the page with")
def test_a_browser_shows_the_round_that_is_asked_for_and_keys_step_on(target: Any, tmp_path: Path) -> None:
    _, story = decode(target, match)
    file, keys = tmp_path / "page.html", ("ArrowRight", "ArrowUp", "ArrowUp")
    write({"model": "m", "method": "planted", "lossless": True, "temperature": 0, "prompt": EVIL, **story}, file)
    pressed = "".join(f'document.dispatchEvent(new KeyboardEvent("keydown", {{key: "{k}"}}));' for k in keys)
    file.write_text(file.read_text("utf-8").replace("</body>", f"<script>{pressed}</script></body>"), "utf-8")
    options = [*QUIET.split(), f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", f"{file.as_uri()}#round=2"]
    dom = subprocess.run([str(CHROMIUM), *options], capture_output=True, text=True, timeout=120, check=False).stdout
    third = story["rounds"][2]
    assert f"round 3 of {len(story['rounds'])}" in dom
    assert dom.count('class="node ') == len(third["nodes"])
    assert dom.count(" chosen") >= 1
    assert "&lt;/script&gt;" in dom
