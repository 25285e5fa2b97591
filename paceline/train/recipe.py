"""Training recipes: YAML, validated, unknown keys refused. Each section stands here with what its fields mean."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]


class Section(BaseModel):
    """A part of a recipe."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Data(Section):
    """Prompts: JSONL (also .gz) with id, task and turns. `held_out` of them are kept for the evaluation, but at most a fifth.

    `from_run` names the folder of another run, or of several, whose prompts, answers and features are used instead: to compare heads, or
    to learn from more data.
    `sequences` trains on so many of the sequences only.
    """

    prompts: list[str] = []
    from_run: Annotated[list[str], BeforeValidator(lambda given: [given] if isinstance(given, str) else given or [])] = []
    limit: Count | None = None
    sequences: Count | None = None
    on_bad_line: Literal["stop", "skip"] = "stop"
    learn_prompts: bool = False  # supervise the prompts too: more text, though not the target's own
    held_out: Natural = 24

    @model_validator(mode="after")
    def _one_source(self) -> Data:
        if not self.prompts and not self.from_run:
            raise ValueError("there are no prompts; give --prompts FILE, or the folder of a run as data.from_run")
        if self.prompts and self.from_run:
            raise ValueError("prompts have no effect with from_run, which has its own; leave one of them out")
        return self


class Answers(Section):
    """Training text. `target`: the target's own answers; `corpus`: the references in the prompt files, for comparison.

    Each prompt is answered at one of the `temperatures`. `max_minutes` bounds the generation, composed prompts included.
    """

    source: Literal["target", "corpus"] = "target"
    method: str = "none"
    batch_size: Count = 16
    temperatures: list[Annotated[float, Field(ge=0)]] = Field(default=[0.0], min_length=1)
    max_new_tokens: Count = 256
    max_prompt_tokens: Count = 1024
    on_long_prompt: Literal["cut", "skip", "stop"] = "cut"
    max_minutes: Positive | None = None


class Compose(Section):
    """How many prompts of each kind are composed from training prompts and the target's own answers (see `train/compose.py`)."""

    translate: Natural = 0
    translate_back: Natural = 0
    summarize: Natural = 0
    answer_from: Natural = 0

    @model_validator(mode="after")
    def _back_needs_there(self) -> Compose:
        if self.translate_back > self.translate:
            raise ValueError("translate_back uses the answers of translate, so it cannot be larger")
        return self


class Head(Section):
    """Shape of the head. `taps` are layer ids or their number; `draft_vocab_size` null is the whole vocabulary. `start` is the folder of
    a head whose weights training goes on from; otherwise `init` says how it begins (from the target if null)."""

    num_hidden_layers: Count = 2
    block_size: Annotated[int, Field(ge=2)] = 8
    taps: Count | list[Natural] = 5
    draft_vocab_size: Count | None = 8192
    markov_rank: Natural = 64
    last_feature: bool = False
    mask_token_id: Natural | None = None
    init: Literal["target", "random"] | None = None
    start: str | None = None

    @model_validator(mode="after")
    def _one_beginning(self) -> Head:
        if self.init is not None and self.start is not None:
            raise ValueError(f"init {self.init} has no effect with start, whose weights the head begins with")
        return self


class Features(Section):
    """`cached`: kept on disk in bfloat16, made while the answers are; `online`: one target forward each time."""

    where: Literal["cached", "online"] = "cached"
    shard_mb: Count = 256


class Objective(Section):
    """`kl`: forward KL to the target over the draft vocabulary; `ce`: cross-entropy on the target's tokens; `mix`: both.

    `ce_weight` is the share of cross-entropy in the mix (0.5 if null), `gamma` the length of exponential depth weights (4 if null).
    `top_weight` adds so much of HASS's cross-entropy over the target's `top_tokens` likeliest tokens (10 if null).
    """

    loss: Literal["kl", "ce", "mix"] = "kl"
    ce_weight: Share | None = None
    temperature: Positive | None = None
    depth_weights: Literal["uniform", "exponential", "dynamic"] = "uniform"
    gamma: Positive | None = None
    top_weight: Annotated[float, Field(ge=0)] = 0.0
    top_tokens: Count | None = None
    chunk_blocks: Count = 32

    @model_validator(mode="after")
    def _no_idle_option(self) -> Objective:
        if self.ce_weight is not None and self.loss != "mix":
            raise ValueError(f"ce_weight has no effect with loss {self.loss}")
        if self.gamma is not None and self.depth_weights != "exponential":
            raise ValueError(f"gamma has no effect with depth_weights {self.depth_weights}")
        if self.top_tokens is not None and not self.top_weight:
            raise ValueError("top_tokens has no effect without top_weight")
        if self.top_weight and self.loss == "ce":
            raise ValueError("top_weight has no effect with loss ce, which does not ask for the target's law")
        if self.temperature is not None and self.loss == "ce":
            raise ValueError("temperature has no effect with loss ce")
        return self


class Optimizer(Section):
    """AdamW with linear warm-up (a share of the run) and a cosine down to `floor` times `lr`."""

    lr: Positive = 6e-4
    betas: tuple[Share, Share] = (0.9, 0.95)
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    warmup: Share = 0.04
    floor: Share = 0.0
    clip: Positive = 1.0
    batch_size: Count = 8
    micro_batch: Count = 1
    anchors: Count = 48
    max_length: Annotated[int, Field(ge=4)] = 1280
    precision: Literal["float32", "bfloat16"] = "float32"


class Length(Section):
    """When the run ends: after `steps`, or else `epochs` passes over the data, and in any case after `max_minutes` of training.

    With `steps` and no `data.limit`, no more prompts are answered than the steps see in `epochs` passes.
    """

    steps: Count | None = None
    epochs: Count = 4
    max_minutes: Positive | None = None


class Checkpoints(Section):
    """The latest `keep` stay."""

    every_minutes: Positive = 10.0
    keep: Count = 2


class Evaluation(Section):
    """Acceptance by decoding: on these prompts, or on those held out. `every` so many steps, and at the end; 0 is at the end only."""

    prompts: str | None = None
    limit: Count | None = None
    max_new_tokens: Count = 128
    budget: Count = 16
    every: Natural = 0


class Common(Section):
    """What every kind of training needs: a target, texts of its own, and how to step."""

    model: str = "smollm2"
    revision: str | None = None
    dtype: str = "auto"
    device: str = "auto"
    seed: Natural = 0
    data: Data = Field(default_factory=Data)
    answers: Answers = Field(default_factory=Answers)
    compose: Compose = Field(default_factory=Compose)
    features: Features = Field(default_factory=Features)
    optimizer: Optimizer = Field(default_factory=Optimizer)
    checkpoints: Checkpoints = Field(default_factory=Checkpoints)
    evaluation: Evaluation = Field(default_factory=Evaluation)

    @model_validator(mode="after")
    def _fits_together(self) -> Common:
        if self.answers.source == "corpus" and any(self.compose.model_dump().values()):
            raise ValueError("compose needs the target's own answers; leave it out with answers.source corpus")
        if self.answers.source == "corpus" and self.answers.max_minutes is not None:
            raise ValueError("answers.max_minutes has no effect with answers.source corpus")
        return self

    @property
    def most_prompts(self) -> int | None:
        """How many training prompts are answered at most."""
        return self.data.limit


class Recipe(Common):
    """All that decides what a run does, but for the folder that it writes."""

    head: Head = Field(default_factory=Head)
    objective: Objective = Field(default_factory=Objective)
    length: Length = Field(default_factory=Length)

    @property
    def most_prompts(self) -> int | None:
        if self.data.limit is None and self.length.steps is not None:
            return math.ceil(self.length.steps * self.optimizer.batch_size / self.length.epochs)
        return self.data.limit
