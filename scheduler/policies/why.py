"""The reasons of a policy's decision: the compared options and the winner. Words are made from these numbers. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

# Two different values are shown with as many decimals as it takes to tell them apart, from the first to the second.
_DECIMALS = ("%.2f", "%.3f", "%.4f", "%.5f", "%.6f")


class Choice(msgspec.Struct, frozen=True):
    """One comparison that a decision rests on: `picked` is the best of `options`: name and value of each.

    quantity, unit: the words before and after the value ("it costs" 2.22 "s"). most: True if the highest value is the
    best, False if the lowest. favoured: if given, stays picked unless another is better by more than `margin`.
    favoured_as: describes the favoured choice. ruled_out: other candidates, each with the reason that excludes it.
    """

    picked: str
    quantity: str
    options: tuple[tuple[str, float], ...]
    most: bool = False
    unit: str = "s"
    favoured: str = ""
    favoured_as: str = ""
    margin: float = 0.0
    ruled_out: tuple[tuple[str, str], ...] = ()

    def tell(self) -> str:
        """Tell the comparison in words: the value of the pick, and of the rival that it beat or was kept against."""
        values = dict(self.options)
        own, rival = values.pop(self.picked), self._find_rival()
        if not rival:
            told = self._tell_value(own, own)
        elif self.picked == self.favoured and self._is_better(values[rival], own):
            kept = f"is better by less than the margin of {self.margin:.2f} {self.unit} for {self.favoured_as}"
            told = f"{self._tell_value(own, values[rival])}; {rival} {_tell_apart(values[rival], own)} {kept}"
        elif self.favoured in values:
            beaten, than = f"{self.favoured_as}, {self.favoured}", values[self.favoured]
            worse = f"is worse by more than the margin of {self.margin:.2f} {self.unit}"
            told = f"{self._tell_value(own, than)}; {beaten} {_tell_apart(than, own)}, {worse}"
        elif values[rival] == own:
            told = f"{self._tell_value(own, own)} (as {rival})"
        else:
            told = f"{self._tell_value(own, values[rival])} (next {rival} {_tell_apart(values[rival], own)})"
        if not self.ruled_out:
            return told
        name, why = self.ruled_out[0]
        others = f" and {len(self.ruled_out) - 1} more" if len(self.ruled_out) > 1 else ""
        return f"{told}; not {name}{others}: {why}"

    def _find_rival(self) -> str:
        """Return the best of the others; "" if there are none."""
        others = [option for option in self.options if option[0] != self.picked]
        return max(others, key=lambda option: option[1] if self.most else -option[1])[0] if others else ""

    def _is_better(self, value: float, than: float) -> bool:
        return value > than if self.most else value < than

    def _tell_value(self, value: float, other: float) -> str:
        return f"{self.quantity} {_tell_apart(value, other)} {self.unit}".rstrip()


def first(options: Iterable[tuple[str, float]]) -> str:
    """Return the name with the lowest value, the first of equals."""
    return min(options, key=lambda option: option[1])[0]


def _tell_apart(value: float, other: float) -> str:
    """Format the value with the fewest decimals that still show which of the two is larger, if one is."""
    for decimals in _DECIMALS if value != other else ():
        if (told := decimals % value) != decimals % other:
            return told
    return _DECIMALS[0] % value
