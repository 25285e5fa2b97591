"""Recipes: unknown keys and options without effect are refused by name, settings go over files, and what is printed reads back."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from paceline.errors import InvalidRequest
from paceline.train.folder import open_folder
from paceline.train.rcsd.recipe import RcsdRecipe
from paceline.train.read_recipe import as_yaml, parse_setting, read
from paceline.train.recipe import Recipe

BASE = {"data.prompts": ["p.jsonl"]}
EXAMPLES = sorted((Path(__file__).parents[2] / "examples" / "recipes").glob("*.yaml"))

WRONG = {
    "unknown section": ({"hed.markov_rank": 1}, "hed"),
    "unknown key": ({"head.markov": 1}, "head.markov is 1"),
    "no number": ({"optimizer.lr": "fast"}, "optimizer.lr is 'fast'"),
    "out of range": ({"length.steps": 0}, "length.steps is 0"),
    "unknown choice": ({"objective.loss": "reverse"}, "objective.loss is 'reverse'"),
    "gamma without its weights": ({"objective.gamma": 4}, "gamma has no effect with depth_weights uniform"),
    "top tokens without weight": ({"objective.top_tokens": 5}, "top_tokens has no effect without top_weight"),
    "top tokens without a law": ({"objective.loss": "ce", "objective.top_weight": 1.0}, "top_weight has no effect with loss ce"),
    "share without a mix": ({"objective.ce_weight": 0.5}, "ce_weight has no effect with loss kl"),
    "temperature of cross-entropy": ({"objective.loss": "ce", "objective.temperature": 2}, "temperature has no effect"),
    "composing from a corpus": ({"answers.source": "corpus", "compose.summarize": 3}, "compose needs the target's own answers"),
    "minutes of a corpus": ({"answers.source": "corpus", "answers.max_minutes": 3}, "max_minutes has no effect"),
    "more translated back than there": ({"compose.translate_back": 3}, "translate_back uses the answers of translate"),
    "a value for a section": ({"head": 3, "head.taps": 2}, "head is a value, not a section"),
    "prompts missing": ({"data.prompts": []}, "there are no prompts; give --prompts FILE"),
}


@pytest.mark.parametrize(("settings", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_setting_is_refused_in_one_line_that_names_it(settings, message):
    with pytest.raises(InvalidRequest) as caught:
        read(None, BASE | settings)
    assert message in str(caught.value), str(caught.value)
    assert "\n" not in str(caught.value), str(caught.value)


def test_settings_go_over_the_file_and_the_rest_of_a_section_stays(tmp_path):
    file = tmp_path / "r.yaml"
    file.write_text("data: {prompts: [a.jsonl]}\nhead: {markov_rank: 8, block_size: 5}\n")
    recipe = read(file, dict([parse_setting("head.markov_rank=0"), parse_setting("length.max_minutes=1.5")]))
    assert (recipe.head.markov_rank, recipe.head.block_size, recipe.length.max_minutes) == (0, 5, 1.5)


def test_what_is_printed_reads_back_as_the_same_recipe(tmp_path):
    recipe = read(None, BASE | {"objective.loss": "mix", "objective.ce_weight": 0.25, "head.taps": [1, 4]})
    (tmp_path / "r.yaml").write_text(as_yaml(recipe))
    assert read(tmp_path / "r.yaml", {}) == recipe


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda f: f.name)
def test_every_recipe_among_the_examples_holds(file):
    read(file, BASE, RcsdRecipe if file.name.startswith("rcsd") else Recipe)


@pytest.mark.parametrize("text", ["[1, 2]", "a: [", "\xff"], ids=["a list", "no YAML", "no UTF-8"])
def test_a_file_that_is_no_recipe_is_refused(tmp_path, text):
    file = tmp_path / "r.yaml"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(InvalidRequest, match=r"recipe .*r\.yaml"):
        read(file, {})


def test_a_setting_without_a_value_is_refused():
    with pytest.raises(InvalidRequest, match=r"write for example --set head\.markov_rank=0"):
        parse_setting("head.markov_rank")


# --- the folder of a run


def opened(folder, **settings):
    open_folder(folder, read(None, BASE | settings), torch.device("cpu"))


def test_a_run_with_another_recipe_does_not_go_on_in_the_folder(tmp_path):
    opened(tmp_path / "run")
    with pytest.raises(InvalidRequest, match=r"head\.markov_rank = 64, and now it is 0"):
        opened(tmp_path / "run", **{"head.markov_rank": 0})


def test_length_and_evaluation_may_change(tmp_path):
    opened(tmp_path / "run")
    opened(tmp_path / "run", **{"length.steps": 7, "evaluation.budget": 3, "answers.batch_size": 2})


def test_a_folder_with_other_things_in_it_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("x")
    with pytest.raises(InvalidRequest, match="not empty and holds no run"):
        opened(tmp_path)
    with pytest.raises(InvalidRequest, match="is a file"):
        opened(tmp_path / "thesis.txt")
    assert [f.name for f in tmp_path.iterdir()] == ["thesis.txt"]
