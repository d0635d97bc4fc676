"""The house as a picture, docs/house.svg: five folders as floors, what is in them, and the way of a delta through them.

python docs/house.py draws it. A test compares it with the tree.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "house.svg"
# The highest first: a floor imports only from those below it.
FLOORS = ("peers", "scheduler", "sim", "transport", "mdl")
# `mdl/peers` and the like are links to the floors above.
_LINKS = {ROOT / "mdl" / name for name in FLOORS}


class Step(NamedTuple):
    """One step of a delta. path: of its module. told: in words."""

    path: str
    told: str


WAY = (
    Step("peers/roles/agent/conductor.py", "the agent opens a round"),
    Step("peers/edge/device.py", "each device trains its windows"),
    Step("mdl/learning/training.py", "w(t) - w(i) is the delta; theta is 1"),
    Step("peers/roles/trainer/own_delta.py", "it becomes integers of the round's grid"),
    Step("scheduler/policies/registry.py", "a policy orders a hop, or shares plan segments"),
    Step("transport/wire/bulk.py", "it travels, encrypted, in chunks"),
    Step("mdl/protocol/vector_work.py", "the receiver adds it up and checks the sum"),
    Step("peers/roles/trainer/broadcast.py", "all fetch the result and vote"),
    Step("peers/roles/trainer/progress.py", "it is applied: w(t+1)"),
)
_WIDTH, _BOX_H, _GAP, _LEFT, _TOP = 1120, 46, 8, 110, 20
_PER_ROW, _DISC = 8, 10


class Room(NamedTuple):
    """A folder of a floor, or the floor's own modules."""

    name: str
    modules: int
    x: float
    y: float
    width: float


def draw() -> str:
    """Return the picture of the tree as it is. Raises FileNotFoundError if a step's module is not there."""
    rooms, floors, height = _lay_out()
    parts = [_floor(name, top, bottom) for name, top, bottom in floors]
    parts += [_room(room) for room in rooms.values()]
    parts.append(_way(rooms))
    parts += [
        f'<text x="{_LEFT}" y="{height + 22 * (number + 1)}" class="step"><tspan class="number">{number + 1}</tspan>'
        f"  {escape(step.told)}: {escape(step.path)}</text>"
        for number, step in enumerate(WAY)
    ]
    style = (
        "text{font-family:sans-serif;fill:#1b2a33}.floor{fill:#eef3f6}.room{fill:#fff;stroke:#9db2bf}"
        ".name{font-size:13px}.count{font-size:11px;fill:#5c7280}.head{font-size:15px;font-weight:bold}"
        ".step{font-size:13px}.number{font-weight:bold;fill:#b3471d}.way{fill:none;stroke:#b3471d;stroke-width:2;"
        "stroke-opacity:.55}.disc{fill:#b3471d}.digit{font-size:12px;fill:#fff;text-anchor:middle}"
    )
    size = f'width="{_WIDTH}" height="{height + 22 * (len(WAY) + 1)}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="the folders of mdl">'
    return "\n".join([head, f"<style>{style}</style>", *parts, "</svg>", ""])


def _lay_out() -> tuple[dict[str, Room], list[tuple[str, float, float]], float]:
    rooms: dict[str, Room] = {}
    floors: list[tuple[str, float, float]] = []
    y = float(_TOP)
    width = (_WIDTH - _LEFT - _GAP) / _PER_ROW - _GAP
    for floor in FLOORS:
        found = _find_rooms(floor)
        for place, (name, modules) in enumerate(found):
            row, column = divmod(place, _PER_ROW)
            at = _LEFT + column * (width + _GAP), y + _GAP + row * (_BOX_H + _GAP)
            rooms[name] = Room(name, modules, *at, width)
        rows = -(-len(found) // _PER_ROW)
        bottom = y + rows * (_BOX_H + _GAP) + _GAP
        floors.append((floor, y, bottom))
        y = bottom + _GAP
    return rooms, floors, y


def _find_rooms(floor: str) -> list[tuple[str, int]]:
    """Return (folder, number of modules), the floor's own modules first."""
    place = ROOT / floor
    folders = sorted(path for path in place.iterdir() if (path / "__init__.py").exists() and path not in _LINKS)
    counted = [(f"{floor}/{path.name}", _count(path.rglob("*.py"))) for path in folders]
    return [(floor, _count(place.glob("*.py"))), *counted]


def _count(paths: Iterable[Path]) -> int:
    return sum(path.name != "__init__.py" for path in paths)


def _floor(name: str, top: float, bottom: float) -> str:
    return (
        f'<rect class="floor" x="0" y="{top:.0f}" width="{_WIDTH}" height="{bottom - top:.0f}" rx="6"/>'
        f'<text class="head" x="12" y="{top + 34:.0f}">{name}/</text>'
    )


def _room(room: Room) -> str:
    short = room.name.partition("/")[2] or "its own modules"
    told = "1 module" if room.modules == 1 else f"{room.modules} modules"
    return (
        f'<rect class="room" x="{room.x:.0f}" y="{room.y:.0f}" width="{room.width:.0f}" height="{_BOX_H}" rx="4"/>'
        f'<text class="name" x="{room.x + 8:.0f}" y="{room.y + 19:.0f}">{escape(short)}</text>'
        f'<text class="count" x="{room.x + 8:.0f}" y="{room.y + 36:.0f}">{told}</text>'
    )


def _way(rooms: dict[str, Room]) -> str:
    points: list[tuple[float, float]] = []
    visits: dict[str, int] = {}
    for step in WAY:
        if not (ROOT / step.path).is_file():
            raise FileNotFoundError(step.path)
        name = next(name for name in sorted(rooms, key=len, reverse=True) if step.path.startswith(f"{name}/"))
        room, visit = rooms[name], visits.get(name, 0)
        visits[name] = visit + 1
        up, left = divmod(visit, 2)
        points.append((room.x + room.width - 14 - left * (2 * _DISC + 2), room.y + 34 - up * (2 * _DISC + 2)))
    line = " ".join(f"{x:.0f},{y:.0f}" for x, y in points)
    discs = [
        f'<circle class="disc" cx="{x:.0f}" cy="{y:.0f}" r="{_DISC}"/>'
        f'<text class="digit" x="{x:.0f}" y="{y + 4:.0f}">{number}</text>'
        for number, (x, y) in enumerate(points, 1)
    ]
    return "\n".join([f'<polyline class="way" points="{line}"/>', *discs])


if __name__ == "__main__":
    PICTURE.write_text(draw())
