"""The learned policy: the shipped network decides, in plain NumPy; greedy takes over if it must not.

It must not if the mesh differs from those it was trained for, if a number is not finite, or if it is late.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import as_file, files
from pathlib import Path

import msgspec
import numpy as np

from mdl.devices.usage import UsageKind
from mdl.scheduler.policies.chain import (
    FULL,
    ChainView,
    Choice,
    Decision,
    DeviceState,
    Floats,
    Pair,
    Policy,
    Wait,
    leave_to,
    stand_of,
)
from mdl.scheduler.policies.features import Look, look_at
from mdl.scheduler.policies.greedy import Greedy, too_few
from mdl.scheduler.policies.qnet_numpy import MARGIN, NumpyQ, Picked, Picks, Weights, load_weights

SHIPPED = "chain.safetensors"
# Files in a device's folder for re-learning: the rounds seen, what is learned so far, and the policy if it is better.
SEEN, DRAFT, POLICY = "seen.jsonl", "draft.safetensors", SHIPPED
# Trained up to 64 devices; nothing was measured beyond twice of that.
MAX_DEVICES = 128
_WAITING = "to wait"  # no device can have this name
# A forbidden pick has a value far below this, a valid one far above.
_NEVER = -1e6
_KINDS = len(UsageKind)


def load_shipped() -> tuple[Weights, dict[str, object]]:
    """Return the weights of the policy that mdl brings along, and its file's metadata."""
    with as_file(files("mdl.scheduler") / "data" / SHIPPED) as shipped:
        return load_weights(shipped)


class Learned:
    """The learned policy: `decide` follows the network's values; `explain` gives them for every alternative.

    path: a policy file, by default the shipped one. deadline_s: the fallback decides instead if a decision takes longer
    by `clock`; never without a clock. name: the start of every reason. Raises DataError for a file that is no policy.
    """

    def __init__(
        self,
        path: Path | None = None,
        *,
        deadline_s: float | None = None,
        clock: Callable[[], float] | None = None,
        fallback: Policy | None = None,
        margin: float = MARGIN,
        name: str = "dqn",
    ) -> None:
        self.name = name
        if path is None:
            weights, self.metadata = load_shipped()
        else:
            weights, self.metadata = load_weights(path)
        self.picks = Picks(NumpyQ(weights), margin)
        self._deadline_s, self._clock = deadline_s, clock
        self._fallback = Greedy() if fallback is None else fallback

    def decide(self, view: ChainView) -> Decision:
        free = [index for index, device in enumerate(view.devices) if device.state is DeviceState.FREE]
        if len(free) < 2:
            return Wait(too_few(view))
        outside = _outside(view)
        if outside:
            return self._fall_back(view, outside)
        began_s = self._clock() if self._clock is not None else 0.0
        look = _look(view)
        if not np.isfinite(look.features).all():
            return self._fall_back(view, "a number in the observation is not finite")
        first = self.picks.pick_senders(look)
        sender = int(first.positions[0])
        if self._is_late(began_s):
            return self._fall_back(view, f"no decision within {self._deadline_s:g} s")
        devices = view.devices
        why = [self._choice(view, first, look)]
        if sender == len(devices):
            return Wait(f"{self.name}: {_WAITING}: {why[0].tell()}", tuple(why))
        told = f"{self.name}: {devices[sender].peer_id} sends: {why[0].tell()}"
        if len(free) == 2:
            receiver = free[0] + free[1] - sender
            told += f"; {devices[receiver].peer_id} is the only other free device"
        else:
            second = self.picks.pick_receivers(look, first.positions)
            receiver = int(second.positions[0])
            why.append(self._choice(view, second, look, receives=True))
            told += f"; {why[1].picked} receives: {why[1].tell()}"
            if self._is_late(began_s):
                return self._fall_back(view, f"no decision within {self._deadline_s:g} s")
        states = devices[sender].state, devices[receiver].state
        if sender == receiver or states != (DeviceState.FREE, DeviceState.FREE):
            return self._fall_back(view, "the pair it picked is not free")
        return Pair(devices[sender].peer_id, devices[receiver].peer_id, told, tuple(why))

    def _choice(self, view: ChainView, picked: Picked, look: Look, receives: bool = False) -> Choice:
        """Describe a choice in seconds; values are in transfers of the median link. receives: True for the receiver."""
        unit_s, names = float(look.stand.unit_s[0]), [*(device.peer_id for device in view.devices), _WAITING]
        position, planned = int(picked.positions[0]), int(picked.planned[0])
        values = [float(value) for value in picked.values[0]]
        return Choice(
            names[position],
            "it is worth",
            tuple((name, value * unit_s) for name, value in zip(names, values, strict=True) if value > _NEVER),
            most=True,
            favoured=names[planned],
            favoured_as="the layout's pick",
            ruled_out=tuple((device.peer_id, FULL) for device in view.devices if receives and not device.may_receive),
            margin=self.picks.margin * unit_s,
        )

    def explain(self, view: ChainView) -> list[tuple[str, float]]:
        """List every alternative by value, best first: "a sends" or "wait", then "a -> b" for the picked sender.

        A value is minus the remaining time to expect (and the worth of energy and losses), in seconds. Empty if the
        network does not decide. The pick of the layout is kept within a margin, so the best value need not win.
        """
        if sum(device.state is DeviceState.FREE for device in view.devices) < 2 or _outside(view):
            return []
        look = _look(view)
        if not np.isfinite(look.features).all():
            return []
        first = self.picks.pick_senders(look)
        unit_s, ids = float(look.stand.unit_s[0]), [device.peer_id for device in view.devices]
        told = _ranked([*(f"{peer} sends" for peer in ids), "wait"], first.values[0], unit_s)
        sender = int(first.positions[0])
        if sender < len(ids):
            second = self.picks.pick_receivers(look, first.positions)
            told += _ranked([*(f"{ids[sender]} -> {peer}" for peer in ids), ""], second.values[0], unit_s)
        return told

    def _is_late(self, began_s: float) -> bool:
        return self._clock is not None and self._deadline_s is not None and self._clock() - began_s > self._deadline_s

    def _fall_back(self, view: ChainView, why: str) -> Decision:
        return leave_to(self._fallback, _with_known_kinds(view), self.name, why)


def _look(view: ChainView) -> Look:
    """Look at a view. Reported numbers may be beyond any range: the caller checks that all are finite."""
    with np.errstate(all="ignore"):
        return look_at(stand_of(view))


def _outside(view: ChainView) -> str:
    """Return why the network must not decide here; empty if it may."""
    if not 2 <= len(view.devices) <= MAX_DEVICES:
        return f"{len(view.devices)} devices, it knows 2 to {MAX_DEVICES}"
    if not any(device.link_mb_s for device in view.devices):
        return "no link speed is known yet"
    if not view.size_mb > 0:
        return f"a size of {view.size_mb:g} MB"
    unknown = next((device for device in view.devices if not _is_known(device.kind)), None)
    return f"{unknown.peer_id} is of an unknown kind of use" if unknown is not None else ""


def _with_known_kinds(view: ChainView) -> ChainView:
    devices = tuple(
        device if _is_known(device.kind) else msgspec.structs.replace(device, kind=UsageKind.IDLE)
        for device in view.devices
    )
    return msgspec.structs.replace(view, devices=devices)


def _is_known(kind: int) -> bool:
    return 0 <= kind < _KINDS


def _ranked(names: list[str], values: Floats, unit_s: float) -> list[tuple[str, float]]:
    order = [index for index in np.argsort(-values).tolist() if values[index] > _NEVER]
    return [(names[index], float(values[index]) * unit_s) for index in order]
