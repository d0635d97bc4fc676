"""A model's answer for one window: a class, numbers, or the labels that hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mdl.files.export import ModelDescription

# A class; the labels that hold; or numbers by name, in their units.
Predicted: TypeAlias = str | list[str] | dict[str, float]

# A label holds if its probability is above this.
HOLDS = 0.5
_NONE = "none"


class Answer(NamedTuple):
    """The answer for one window. shares: the probability of the class, or of each label by name; empty for numbers."""

    predicted: Predicted
    shares: dict[str, float]

    def describe(self) -> dict[str, Any]:
        """Return the answer as JSON."""
        if isinstance(self.predicted, str):
            return {"predicted": self.predicted, "probability": self.shares[self.predicted]}
        return {"predicted": self.predicted} | ({"probabilities": self.shares} if self.shares else {})

    def show(self, units: Sequence[str] = ()) -> str:
        """Return the answer in one line. units: of numbers."""
        if isinstance(self.predicted, str):
            return f"{self.predicted:<20} {self.shares[self.predicted]:.1%}"
        if isinstance(self.predicted, list):
            return ", ".join(f"{name} {self.shares[name]:.1%}" for name in self.predicted) or _NONE
        return show_predicted(self.predicted, units)


def read_outputs(
    outputs: NDArray[np.float32], description: ModelDescription, chosen: Sequence[int] | None = None
) -> Iterator[Answer]:
    """Yield one answer a row.

    outputs: float32 (n, outputs), as the module gives them. chosen: classes that are possible here.
    """
    names, values = description.class_names, outputs.astype(np.float64)
    if description.targets == "numbers":
        for row in values.tolist():
            yield Answer({name: float(f"{value:.6g}") for name, value in zip(names, row, strict=True)}, {})
    elif description.targets == "labels":
        for row in (1 / (1 + np.exp(-values.clip(-700, 700)))).tolist():
            shares = {name: round(share, 4) for name, share in zip(names, row, strict=True)}
            yield Answer([name for name, share in zip(names, row, strict=True) if share > HOLDS], shares)
    else:
        places = np.arange(len(names)) if chosen is None else np.array(chosen)
        kept = np.exp(values[:, places] - values[:, places].max(axis=1, keepdims=True))
        for shares_of in kept / kept.sum(axis=1, keepdims=True):
            name = names[int(places[shares_of.argmax()])]
            yield Answer(name, {name: round(float(shares_of.max()), 4)})


def true_answer(known: Any, description: ModelDescription) -> Predicted:
    """Return the known answer of a window: from a class's number, a row of numbers, or a row of 0 and 1."""
    names = description.class_names
    if description.targets == "classes":
        return names[int(known)]
    if description.targets == "labels":
        return [name for name, holds in zip(names, known.tolist(), strict=True) if holds]
    return {name: float(f"{value:.6g}") for name, value in zip(names, known.tolist(), strict=True)}


def show_predicted(predicted: Predicted, units: Sequence[str] = ()) -> str:
    """Return a prediction in one line, without probabilities."""
    if isinstance(predicted, str):
        return predicted
    if isinstance(predicted, list):
        return ", ".join(predicted) or _NONE
    told = zip(predicted.items(), units or [""] * len(predicted), strict=True)
    return ", ".join(f"{name} {value:.4g} {unit}".rstrip() for (name, value), unit in told)
