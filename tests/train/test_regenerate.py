"""The target's own answers: the same as one by one, in a batch that stays full, resumable, with features on the way."""

from __future__ import annotations

import json

import pytest
import torch

from paceline import SamplingParams, api
from paceline.errors import InvalidRequest, PacelineError, PromptTooLong
from paceline.train.answers import AnswerFile
from paceline.train.data import target_mark
from paceline.train.prompts import Row, read
from paceline.train.recipe import Answers
from paceline.train.regenerate import Regenerator, fingerprint

from .conftest import prompts_file

SETTINGS = Answers(batch_size=3, max_new_tokens=12)


@pytest.fixture
def rows(tmp_path):
    return read([prompts_file(tmp_path, 8)], on_bad_line="stop", say=print)


def made(target, rows, path, settings=SETTINGS, **arguments):
    file = AnswerFile(path, fingerprint(target_mark(target), settings, 0))
    maker = Regenerator(target, settings, **arguments)
    maker.run(rows, file, seconds=None)
    return file, maker


def alone(target, row, temperature=0.0):
    (done,) = api.generate(target, [row.turns[0]], SamplingParams(max_new_tokens=12, temperature=temperature), method="none")
    return done.tokens


def test_every_answer_is_the_one_that_its_prompt_gets_alone(teacher_target, rows, tmp_path):
    file, _ = made(teacher_target, rows, tmp_path / "a.jsonl")
    want = {row.id: alone(teacher_target, row) for row in rows}
    assert {k: a.ids for k, a in file.answers.items()} == want
    assert all(a.prompt_ids == api.encode(teacher_target, row.turns[0]) for row in rows for a in [file.answers[row.id]])


def test_the_batch_stays_full_until_prompts_run_out(teacher_target, rows, tmp_path, monkeypatch):
    sizes = []
    verify = teacher_target.verify
    monkeypatch.setattr(teacher_target, "verify", lambda trees, *rest: sizes.append(len(trees)) or verify(trees, *rest))
    made(teacher_target, rows, tmp_path / "a.jsonl")
    short = [i for i, size in enumerate(sizes) if size < 3]
    assert max(sizes) == 3
    assert not short or short[0] >= len(sizes) - 12, f"batch sizes {sizes}"


def test_slots_and_memory_are_given_back(teacher_target, rows, tmp_path):
    made(teacher_target, rows, tmp_path / "a.jsonl")
    assert teacher_target.cache.nbytes == 0


def test_an_interrupted_run_goes_on_and_asks_nothing_twice(teacher_target, rows, tmp_path):
    path, asked = tmp_path / "a.jsonl", iter([False] * 60 + [True])
    with pytest.raises(KeyboardInterrupt):
        made(teacher_target, rows, path, stopped=lambda: next(asked))
    first = path.read_text()
    with path.open("a") as out:
        out.write('{"id": "p')  # a crash in the middle of a line
    kept = len(first.splitlines())
    assert 0 < kept < len(rows), f"{kept} answers before the interruption"
    file, maker = made(teacher_target, rows, path)
    assert path.read_text().startswith(first)
    assert {k: a.ids for k, a in file.answers.items()} == {row.id: alone(teacher_target, row) for row in rows}
    assert maker.new_tokens == sum(len(a.ids) for a in list(file.answers.values())[kept:])


def test_answers_of_other_settings_are_refused(teacher_target, rows, tmp_path):
    made(teacher_target, rows[:1], tmp_path / "a.jsonl")
    with pytest.raises(InvalidRequest, match="other settings"):
        made(teacher_target, rows, tmp_path / "a.jsonl", SETTINGS.model_copy(update={"temperatures": [1.0]}))


def test_the_batch_size_is_no_setting_of_an_answer(teacher_target, rows, tmp_path):
    made(teacher_target, rows[:2], tmp_path / "a.jsonl")
    file, _ = made(teacher_target, rows, tmp_path / "a.jsonl", SETTINGS.model_copy(update={"batch_size": 1, "method": "lookup"}))
    assert len(file.answers) == len(rows)


def test_sampled_answers_are_the_same_in_any_company(teacher_target, rows, tmp_path):
    settings = SETTINGS.model_copy(update={"temperatures": [1.5, 0.0]})
    first, _ = made(teacher_target, rows, tmp_path / "a.jsonl", settings)
    other, _ = made(teacher_target, rows[::-1], tmp_path / "b.jsonl", settings.model_copy(update={"batch_size": 2}))
    assert {k: a.ids for k, a in first.answers.items()} == {k: a.ids for k, a in other.answers.items()}
    assert {a.temperature for a in first.answers.values()} == {0.0, 1.5}
    assert any(a.ids != alone(teacher_target, row) for row in rows for a in [first.answers[row.id]]), "none was sampled"


def test_later_turns_follow_the_targets_own_answers_also_after_an_interruption(teacher_target, tmp_path):
    row = Row("m", "chat", ("the rain", "and the bird", "and the wall"))
    whole, _ = made(teacher_target, [row], tmp_path / "a.jsonl")
    first, second = whole.answers["m"], whole.answers["m#1"]
    messages = [{"role": "user", "content": "the rain"}, {"role": "assistant", "content": first.text}]
    assert second.prompt_ids == api.encode(teacher_target, [*messages, {"role": "user", "content": "and the bird"}])
    lines = (tmp_path / "a.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "b.jsonl").write_text("".join(lines[:2]))
    again, _ = made(teacher_target, [row], tmp_path / "b.jsonl")
    assert again.answers["m#2"].ids == whole.answers["m#2"].ids


def test_the_features_kept_on_the_way_are_those_of_a_pass_over_the_whole_text(teacher_target, rows, taps, tmp_path):
    kept = {}
    file, _ = made(teacher_target, rows, tmp_path / "a.jsonl", layer_ids=taps.layer_ids, keep=lambda key, f: kept.update({key: f.clone()}))
    for key, answer in file.answers.items():
        (want,) = taps.read([[*answer.prompt_ids, *answer.ids]])
        got = taps.split(kept[key])
        assert torch.allclose(got.features, want.features, atol=1e-3), f"{key}: {float((got.features - want.features).abs().max())}"
        assert torch.allclose(got.hidden, want.hidden, atol=1e-3), f"{key}: {float((got.hidden - want.hidden).abs().max())}"


LONG = Row("long", "t", ("the rain falls on the quiet lake " * 10,))


def limited(on_long_prompt):
    return SETTINGS.model_copy(update={"max_prompt_tokens": 40, "on_long_prompt": on_long_prompt})


def test_a_long_prompt_is_cut_inside_the_template(teacher_target, tmp_path):
    file, maker = made(teacher_target, [LONG], tmp_path / "a.jsonl", limited("cut"))
    ids = file.answers["long"].prompt_ids
    full = api.encode(teacher_target, LONG.turns[0])
    ends = [i for i, t in enumerate(api.encode(teacher_target, "x")) if t in teacher_target.eos_token_ids]
    assert ends, "the template ends the user's turn"
    assert 30 < len(ids) <= 40 < len(full), f"{len(ids)} of {len(full)} tokens"
    assert ids[:20] == full[:20]
    assert ids[-2:] == full[-2:], "the end of the template is gone"
    assert (maker.cut, maker.left_out) == (1, 0)


def test_a_long_prompt_is_left_out_or_stops_the_run_as_asked(teacher_target, tmp_path):
    file, maker = made(teacher_target, [LONG], tmp_path / "a.jsonl", limited("skip"))
    assert (len(file.answers), maker.left_out) == (0, 1)
    with pytest.raises(InvalidRequest, match=r"prompt long has \d+ tokens, over answers\.max_prompt_tokens 40"):
        made(teacher_target, [LONG], tmp_path / "b.jsonl", limited("stop"))


def test_no_prompt_is_too_long_for_the_context(teacher_target, tmp_path):
    try:
        file, _ = made(teacher_target, [Row("x", "t", ("rain " * 900,))], tmp_path / "a.jsonl")
    except PromptTooLong as error:
        pytest.fail(str(error))
    assert len(file.answers) == 1


def test_when_the_time_is_up_no_new_prompt_is_asked_and_those_in_work_are_finished(teacher_target, rows, tmp_path):
    file = AnswerFile(tmp_path / "a.jsonl", "s")
    now = iter(range(1000))  # each look at the clock takes a second
    Regenerator(teacher_target, SETTINGS, clock=lambda: float(next(now))).run(rows, file, seconds=5.0)
    assert len(file.answers) == 3, f"{len(file.answers)} of {len(rows)}"
    assert all(a.finish_reason == "stop" or len(a.ids) == 12 for a in file.answers.values())
    Regenerator(teacher_target, SETTINGS).run(rows, file, seconds=file.elapsed)
    assert len(file.answers) == 3, "the time of the runs before counts"


def test_a_full_disk_is_one_line_that_names_the_file_and_what_was_there_stays(teacher_target, rows, tmp_path):
    import resource

    path = tmp_path / "a.jsonl"
    made(teacher_target, rows[:1], path)
    before = path.read_text()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 100, hard))
    try:
        with pytest.raises(PacelineError, match=r"cannot write .*a\.jsonl \(File too large\); make room"):
            made(teacher_target, rows, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    file, _ = made(teacher_target, rows, path)
    assert path.read_text().startswith(before)
    assert len(file.answers) == len(rows)


def test_a_line_is_a_json_object_with_ids_text_prompt_and_settings(teacher_target, rows, tmp_path):
    file, _ = made(teacher_target, rows[:1], tmp_path / "a.jsonl")
    line = json.loads((tmp_path / "a.jsonl").read_text())
    assert line["id"] == rows[0].id
    assert line["text"] == teacher_target.tokenizer.decode(line["ids"], skip_special_tokens=True)
    assert line["settings"] == file.settings
