"""The recipe of exit heads."""

from __future__ import annotations

from pydantic import Field, model_validator

from .recipe import Common, Count, Evaluation, Length, Section


class Exits(Section):
    """`layers`: after how many decoder layers a token may exit; none are the default ones. `draft_vocab_size` null is the whole
    vocabulary: its rows of the output matrix are read at each exit, which costs a small model more than many layers."""

    layers: list[Count] = Field(default_factory=list)
    draft_vocab_size: Count | None = 4096


class ExitRecipe(Common):
    """All that decides what a run does, but for the folder that it writes. `optimizer.anchors` are positions of a sequence that one pass
    over the data trains on."""

    exits: Exits = Field(default_factory=Exits)
    length: Length = Field(default_factory=Length)

    @model_validator(mode="after")
    def _no_idle_option(self) -> ExitRecipe:
        if self.evaluation.budget != Evaluation().budget:
            raise ValueError("evaluation.budget has no effect on exits, which draft chains")
        return self
