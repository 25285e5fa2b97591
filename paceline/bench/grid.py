"""Every combination of budgets, temperatures and batch sizes that a bench was asked for; each is a run with a name of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import InvalidRequest
from ..methods import reads
from .settings import Settings


@dataclass(frozen=True)
class Grid:
    """`settings` hold what all runs share. Its temperature, batch size, seed and budget are those of none of them."""

    settings: Settings
    budgets: tuple[int, ...] = ()  # without any, each method has its own
    temperatures: tuple[float, ...] = (0.0,)
    batch_sizes: tuple[int, ...] = (1,)

    def __post_init__(self) -> None:
        for name, values in self.axes.items():
            if twice := [v for i, v in enumerate(values) if v in values[:i]]:
                raise InvalidRequest(f"{name} gives {twice[0]:g} twice; give each once (--repeat decodes again)")
            if not values and name != "budgets":
                raise InvalidRequest(f"{name} is empty; give at least one")
        if self.settings.seed is not None and not any(self.temperatures):
            raise InvalidRequest("seed has no effect at temperature 0 (greedy decoding); set --temperatures or leave it out")
        for cell in self.cells():
            for budget in self.budgets:
                replace(cell, budget=budget)  # raises for what cannot be

    @classmethod
    def of(cls, settings: Settings) -> Grid:
        """The one combination that these settings are."""
        budgets = () if settings.budget is None else (settings.budget,)
        return cls(settings, budgets, (settings.temperature,), (settings.batch_size,))

    @property
    def axes(self) -> dict[str, Sequence[float]]:
        return {"budgets": self.budgets, "temperatures": self.temperatures, "batch_sizes": self.batch_sizes}

    def cells(self) -> list[Settings]:
        """One for each temperature and batch size: what runs that are compared have in common. They tell no budget."""
        base = replace(self.settings, temperature=1.0, budget=None)
        return [
            replace(base, temperature=t, seed=self.settings.seed if t else None, batch_size=n)
            for t in self.temperatures
            for n in self.batch_sizes
        ]

    def of_method(self, method: str, cell: Settings) -> list[Settings]:
        """The cell with each budget, or as it is if the method reads none."""
        if not self.budgets or "budget" not in reads(method, cell.shape):
            return [cell]
        return [replace(cell, budget=budget) for budget in self.budgets]

    def name(self, run: str, chosen: Settings) -> str:
        """The method's or peer's name with what is not the same for all: `jetspec budget=16 T=1 batch=4`."""
        parts = [run]
        if len(self.budgets) > 1 and chosen.budget is not None:
            parts.append(f"budget={chosen.budget}")
        if len(self.temperatures) > 1:
            parts.append(f"T={chosen.temperature:g}")
        if len(self.batch_sizes) > 1:
            parts.append(f"batch={chosen.batch_size}")
        return " ".join(parts)

    def told(self) -> dict[str, Any]:
        """For a report: the lists, and the values themselves where there is but one."""
        single = {"budget": self.budgets, "temperature": self.temperatures, "batch_size": self.batch_sizes}
        return {
            **{name: list(values) for name, values in self.axes.items()},
            **{name: values[0] if len(values) == 1 else None for name, values in single.items()},
        }
