"""The sections of a recipe that RCSD-style training adds."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from ..recipe import Common, Count, Evaluation, Natural, Objective, Optimizer, Positive, Section, Share

Weight = Annotated[float, Field(ge=0)]


class Preference(Section):
    """What a step minimises. `pref`: the preference loss and its companions; `pg`: a policy gradient; `distill`: nothing but the head's
    ordinary objective at the same places, the control of equal compute.

    `beta` scales the margin, `decay` weighs a pair at depth d by decay^(d - 1), `soft` takes the target's own odds as the label.
    `mask`: `tail` compares single tokens at the divergence; `none` lets what the drafter said behind its first refusal count, too (for
    comparison: it is no evidence). The other weights are those of the terms: `anchor` the head's ordinary loss at the places that the round
    reached, `overlap` total variation there, `stay` divergence from the reference on replayed texts; `pg` has `anchor` and `reward`.
    """

    objective: Literal["pref", "pg", "distill"] = "pref"
    beta: Positive = 0.1
    decay: Annotated[float, Field(gt=0, le=1)] = 0.8
    soft: bool = False
    mask: Literal["tail", "none"] = "tail"
    pref: Weight = 1.0
    anchor: Weight = 1.0
    overlap: Weight = 0.0
    stay: Weight = 0.1
    reward: Weight = 0.2

    @model_validator(mode="after")
    def _no_idle_option(self) -> Preference:
        used = {
            "pref": {"beta", "decay", "soft", "mask", "pref", "anchor", "overlap", "stay"},
            "pg": {"anchor", "reward"},
            "distill": set[str](),
        }[self.objective]
        idle = self.model_fields_set - used - {"objective"}
        idle = {name for name in idle if getattr(self, name) != Preference.model_fields[name].default}
        if idle:
            raise ValueError(f"{', '.join(sorted(idle))} has no effect with objective {self.objective}")
        return self


class Gate(Section):
    """A head is deployed if the mean acceptance length of the domains that it trained on rises and that of earlier ones does not fall by
    `most_loss` of its value, on at most `texts` held-out answers of each domain. After a refusal the round is trained again, `retries`
    times, with half of the learning rate each time. With `enforce` false the verdict is written down and the head deployed all the same.
    """

    most_loss: Share = 0.01
    texts: Count | None = None
    retries: Natural = 1
    enforce: bool = True


class Continual(Section):
    """Rounds of collecting, training and judging.

    `mixed`: each of `rounds` sees all domains; `domains`: one domain after the other, `rounds` each; `online`: the texts as a stream, a
    round whenever `update_every` verify rounds came in. `domains` names groups of tasks, as {"math": ["gsm8k", "math"]} (beginnings of
    their names); without it each task is its own. `replay` is the share of earlier domains' texts in a batch, from a reservoir of at most
    `reservoir` verify rounds, balanced over domains.
    """

    protocol: Literal["mixed", "domains", "online"] = "mixed"
    rounds: Count | None = None
    steps: Count = 40
    update_every: Count | None = None
    domains: dict[str, list[str]] = Field(default_factory=dict)
    replay: Annotated[float, Field(ge=0, lt=1)] = 0.25
    reservoir: Count = 20000
    sequences: Count | None = None  # of a domain, in a round

    @model_validator(mode="after")
    def _no_idle_option(self) -> Continual:
        if self.protocol == "online" and self.rounds is not None:
            raise ValueError("rounds has no effect with protocol online, whose rounds end with the stream")
        if self.protocol != "online" and self.update_every is not None:
            raise ValueError(f"update_every has no effect with protocol {self.protocol}")
        return self


class Draft(Section):
    """A draft model as what is trained: whole, or with `lora_rank` by low-rank adapters on the linear layers of its decoder layers, whose
    update is scaled by `lora_alpha` / rank (null is twice the rank). It drafts a chain, or grows a tree of `evaluation.budget` nodes,
    `num_speculative_tokens` deep.
    """

    model: str
    lora_rank: Count | None = None
    lora_alpha: Positive | None = None
    shape: Literal["tree", "chain"] = "tree"
    num_speculative_tokens: Count = 6

    @property
    def alpha(self) -> float:
        return self.lora_alpha or 2.0 * (self.lora_rank or 1)

    @model_validator(mode="after")
    def _no_idle_option(self) -> Draft:
        if self.lora_alpha is not None and self.lora_rank is None:
            raise ValueError("lora_alpha has no effect without lora_rank")
        return self


class RcsdRecipe(Common):
    """All that decides what a run does, but for the folder that it writes. `head` is a folder; null is the head that is shipped.

    With `draft` a draft model is trained instead of a head, at the rate 1e-5, with adapters 1e-4, if `optimizer` is left out. `records` is
    a folder of rounds that were recorded with this drafter: the first round learns from them instead of collecting.
    """

    head: str | None = None
    draft: Draft | None = None
    records: str | None = None
    optimizer: Optimizer = Field(default_factory=lambda: Optimizer(lr=1e-4, warmup=0.03, anchors=32))
    distillation: Objective = Field(default_factory=lambda: Objective(depth_weights="exponential"))
    preference: Preference = Field(default_factory=Preference)
    continual: Continual = Field(default_factory=Continual)
    gate: Gate = Field(default_factory=Gate)

    @model_validator(mode="before")
    @classmethod
    def _draft_models_learn_slower(cls, values: Any) -> Any:
        draft = values.get("draft") if isinstance(values, dict) else None
        if isinstance(draft, dict) and "optimizer" not in values:
            rate = 1e-5 if draft.get("lora_rank") is None else 1e-4
            return {**values, "optimizer": Optimizer(lr=rate, warmup=0.03, anchors=32)}
        return values

    @model_validator(mode="after")
    def _of_a_draft_model(self) -> RcsdRecipe:
        if self.draft is None:
            return self
        default, given = Objective(depth_weights="exponential"), self.distillation
        idle = {
            "head": self.head is not None,
            "preference.mask": self.preference.mask != "tail",
            "distillation.depth_weights": given.depth_weights != default.depth_weights,
            "distillation.gamma": given.gamma is not None,
            "distillation.chunk_blocks": given.chunk_blocks != default.chunk_blocks,
            "optimizer.micro_batch": self.optimizer.micro_batch != 1,
            "evaluation.budget": self.draft.shape == "chain" and self.evaluation.budget != Evaluation().budget,
        }
        if any(idle.values()):
            raise ValueError(f"{', '.join(name for name, is_idle in idle.items() if is_idle)} has no effect on a draft model")
        return self

    @property
    def most_prompts(self) -> int | None:
        """What the steps can see once."""
        settings = self.continual
        if self.data.limit is not None or settings.protocol == "online":
            return self.data.limit
        groups = max(1, len(settings.domains)) if settings.protocol == "domains" else 1
        return settings.steps * self.optimizer.batch_size * (settings.rounds or 1) * groups

    @model_validator(mode="after")
    def _from_the_target(self) -> RcsdRecipe:
        if self.answers.source != "target":
            raise ValueError("RCSD learns from the target's own answers; leave answers.source out")
        if self.records is not None and self.continual.protocol == "domains":
            raise ValueError("records are of all domains at once; leave them out with protocol domains")
        if self.evaluation.every:
            raise ValueError("evaluation.every has no effect: a round is judged when it is trained")
        return self
