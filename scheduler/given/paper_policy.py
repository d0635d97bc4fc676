"""The paper's own DQN (MDLdroid 3.3.1) as a policy of a live mesh: five states a device, one network for one N. Pure.

The paper schedules once all devices ask for aggregation, so it waits while any trains. Its picks come one after the
other and take no time; hops do. So a hop that is under way counts as done, as in its own problem. Its next pairs are
thought ahead from there. It orders the first pair of two devices that are free now and in no earlier pair.

The network values every device; the best one that may be picked wins. A busy device may not be picked while two
others can: the paper wants the same by its penalty, and the mesh orders it so.
"""

from __future__ import annotations

import numpy as np

from mdl.scheduler.paper.mlp_numpy import MlpQ
from mdl.scheduler.paper.problem import Floats, PaperState
from mdl.scheduler.policies.chain import FULL, ChainView, Decision, DeviceState, Pair, Wait, leave_to, tell_states
from mdl.scheduler.policies.greedy import Greedy, too_few
from mdl.scheduler.policies.why import Choice

# A receiver is free again after its hop; a device that has sent, or is lost, is done.
_SEEN_AS = {
    DeviceState.FREE: PaperState.FREE,
    DeviceState.GET: PaperState.FREE,
    DeviceState.BUSY: PaperState.BUSY,
    DeviceState.SEND: PaperState.DONE,
    DeviceState.DONE: PaperState.DONE,
    DeviceState.DEAD: PaperState.DONE,
}
_STILL_BUSY = "it is busy"
_ONLY_TAKER = "no other may receive"


class PaperPolicy:
    """network: answers for network.n devices, in the order of the view. name: the start of every reason.

    greedy decides in a mesh of another size.
    """

    def __init__(self, network: MlpQ, name: str) -> None:
        self.name = name
        self.n = network.n
        self._network = network
        self._fallback = Greedy()

    def decide(self, view: ChainView) -> Decision:
        free = view.free()
        if len(free) < 2:
            return Wait(too_few(view))
        if len(view.devices) != self.n:
            there = f"it orders {self.n} devices, the mesh has {len(view.devices)}"
            return leave_to(self._fallback, view, self.name, there)
        if training := [device.peer_id for device in view.devices if device.state is DeviceState.TRAINING]:
            return Wait(f"{self.name}: it orders a round once all are ready; {', '.join(training)} train")
        chain = _Ahead(self._network, view)
        paired: set[int] = set()
        first = ""
        while True:
            to_send, sender = chain.pick()
            to_get, receiver = chain.pick(sender)
            pair, names = {sender, receiver}, (to_send.picked, to_get.picked)
            first = first or " to ".join(names)
            if not paired & pair and all(view.devices[index].state is DeviceState.FREE for index in pair):
                told = f"{self.name}: it sees {tell_states(view)}; {names[0]} sends: {to_send.tell()}"
                return Pair(*names, f"{told}; {names[1]} receives: {to_get.tell()}", (to_send, to_get))
            paired |= pair
            chain.step(sender, receiver)
            if len(chain.free()) < 2:
                return Wait(f"{self.name}: it sees {tell_states(view)}; its next pair is {first}, not both free yet")

    def explain(self, view: ChainView) -> list[tuple[str, float]]:
        """List Q of possible senders, the best first, then of receivers for the best; none if it does not decide."""
        is_training = any(device.state is DeviceState.TRAINING for device in view.devices)
        if len(view.free()) < 2 or len(view.devices) != self.n or is_training:
            return []
        chain = _Ahead(self._network, view)
        to_send, sender = chain.pick()
        to_get, _ = chain.pick(sender)
        ranked = [sorted(choice.options, key=lambda option: -option[1]) for choice in (to_send, to_get)]
        told = [(f"{name} sends", value) for name, value in ranked[0]]
        return told + [(f"{to_send.picked} -> {name}", value) for name, value in ranked[1]]


class _Ahead:
    """The paper's process from a live round on: hops under way and pairs thought ahead count as done."""

    def __init__(self, network: MlpQ, view: ChainView) -> None:
        self._network = network
        self._may_receive = [device.may_receive for device in view.devices]
        self._names = [device.peer_id for device in view.devices]
        self._state = np.array([_SEEN_AS[device.state] for device in view.devices], np.int8)
        under_way = [device.state is DeviceState.GET for device in view.devices]
        self._n_agg = np.array([device.received for device in view.devices], np.int64) + under_way

    def free(self) -> list[int]:
        return np.flatnonzero(self._state == PaperState.FREE).tolist()

    def pick(self, sender: int | None = None) -> tuple[Choice, int]:
        """Pick the sender, or the receiver for this sender: the highest Q of those that are free."""
        values, free = self._value(sender), [index for index in self.free() if index != sender]
        takers = [index for index in free if self._may_receive[index]]
        may_be = free
        if takers and sender is not None:
            may_be = takers
        elif len(takers) == 1:
            may_be = [index for index in free if index not in takers]  # the only one that may receive does not send
        best = max(may_be, key=lambda index: values[index])
        busy = np.flatnonzero(self._state == PaperState.BUSY).tolist()
        choice = Choice(
            self._names[best],
            "its Q is",
            tuple((self._names[index], float(values[index])) for index in may_be),
            most=True,
            unit="",
            ruled_out=tuple(
                (self._names[index], _STILL_BUSY if index in busy else FULL if sender is not None else _ONLY_TAKER)
                for index in [*busy, *(index for index in free if index not in may_be)]
                if values[index] > values[best]
            ),
        )
        return choice, best

    def step(self, sender: int, receiver: int) -> None:
        self._state[sender] = PaperState.DONE
        self._n_agg[receiver] += 1

    def _value(self, sender: int | None) -> Floats:
        state = self._state.copy()
        if sender is not None:
            state[sender] = PaperState.SEND
        values: Floats = self._network.value(state[None], self._n_agg[None])[0]
        return values
