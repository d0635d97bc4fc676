"""The picture of the house is what its command draws from the tree."""

from __future__ import annotations

import importlib.util
from pathlib import Path

HOUSE = Path(__file__).resolve().parents[1] / "docs" / "house.py"


def test_the_picture_of_the_house_is_of_this_tree() -> None:
    spec = importlib.util.spec_from_file_location("house", HOUSE)
    assert spec
    assert spec.loader
    house = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(house)
    drawn = house.draw()
    assert house.PICTURE.read_text() == drawn, "run python docs/house.py"
    assert all(f">{number}</text>" in drawn for number in range(1, len(house.WAY) + 1))
