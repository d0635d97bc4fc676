"""The protocol of `mdl schedule decide`: one observation a line in, one decision a line out. Pure.

An observation: {"id", "t", "n", "mb", "lat", "idle": [ids that may be paired], "devices": [{"id", "state", "bw",
"compute", "kind", "cls", "battery", "charging", "busy_for", "eta_ready", "op_left", "nagg", "theta", "energy",
"receives"}], "apart": [[id, id] that cannot reach each other]}.
Only "mb" and "devices" with "id" and "state" are required; all else may be left out or null. A new "id" starts a new
iteration. Ids of devices are whole numbers or strings, and are answered as they were given.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta

from mdl.devices.usage import UsageKind
from mdl.errors import did_you_mean
from mdl.scheduler.policies.chain import ChainView, Decision, DeviceState, DeviceView, Pair, Policy, Wait, go_around
from mdl.scheduler.policies.registry import make_policy

# Bounds of the input: far above any real mesh.
MAX_LINE_BYTES = 1 << 22
MAX_DEVICES = 1024

Id: TypeAlias = int | str
# A difference of two clocks may be a hair below 0. Half a month at most.
Seconds: TypeAlias = Annotated[float, Meta(ge=-1e-3, le=1e6)]
# MB or MB/s: one byte to a terabyte, so that no quotient or sum of a policy is without end.
Amount: TypeAlias = Annotated[float, Meta(ge=1e-6, le=1e6)]


class ObservedDevice(msgspec.Struct, frozen=True):
    """bw, compute: link and merge speed in MB/s. kind: usage class 0-5. cls: device class, 0 the strongest."""

    id: Id
    state: DeviceState
    bw: Amount | None = None
    compute: Amount | None = None
    kind: UsageKind | None = None
    cls: Annotated[int, Meta(ge=0)] | None = None
    battery: Annotated[float, Meta(ge=0, le=100)] | None = None
    charging: bool | None = None
    busy_for: Seconds | None = None
    eta_ready: Seconds | None = None
    op_left: Seconds | None = None
    nagg: Annotated[int, Meta(ge=0)] | None = None
    theta: Annotated[float, Meta(ge=0)] | None = None
    energy: Annotated[float, Meta(ge=-1e9, le=1e9)] | None = None
    receives: bool | None = None


class Observed(msgspec.Struct, frozen=True):
    """One line. idle: by default the devices that are free; n: checked if it is given. apart: pairs to avoid."""

    devices: Annotated[tuple[ObservedDevice, ...], Meta(min_length=1, max_length=MAX_DEVICES)]
    mb: Amount
    id: Id | None = None
    t: float | None = None
    lat: Seconds | None = None
    n: int | None = None
    idle: tuple[Id, ...] | None = None
    apart: Annotated[tuple[tuple[Id, Id], ...], Meta(max_length=MAX_DEVICES)] | None = None


class BadLineError(Exception):
    """This line is no observation; its text names the field. Stays within this module's caller."""


class Decider:
    """Answers observations with the decisions of one policy; a policy's memory ends with the iteration.

    warn: hears once of fields that no observation has.
    """

    def __init__(self, policy: Policy, warn: Callable[[str], None] | None = None) -> None:
        self._warn = warn
        self._fresh = policy
        self._policy = deepcopy(policy)
        self._fallback = make_policy("greedy")
        self._id: Id | None = None
        self._free_since: dict[str, float] = {}
        self._is_first = True

    def answer(self, line: bytes) -> bytes:
        """Return the decision for this line, or {"error": ...}; one line without its end."""
        try:
            observed = _decode(line)
            if self._is_first:
                self._tell_unknown(line)
        except BadLineError as error:
            return msgspec.json.encode({"error": str(error)})
        if self._is_first:
            self._is_first = False
        elif observed.id != self._id:
            self._begin_anew()
        self._id = observed.id
        view = self._see(observed)
        decision = self._decide(view, any(device.state in _ENDING for device in observed.devices))
        if isinstance(decision, Wait):
            return msgspec.json.encode({"wait": True, "reason": decision.reason})
        ids = {str(device.id): device.id for device in observed.devices}
        pair = [ids[decision.sender], ids[decision.receiver]]
        return msgspec.json.encode({"pair": pair, "reason": decision.reason})

    def _begin_anew(self) -> None:
        self._policy = deepcopy(self._fresh)
        self._free_since.clear()

    def _see(self, observed: Observed) -> ChainView:
        now_s = observed.t or 0.0
        idle = None if observed.idle is None else {str(each) for each in observed.idle}
        apart = frozenset((str(one), str(other)) for one, other in observed.apart or ())
        devices = []
        for device in observed.devices:
            name, state = str(device.id), device.state
            if state is DeviceState.FREE and idle is not None and name not in idle:
                state = DeviceState.BUSY  # it may not be paired, for any reason
            if state is DeviceState.FREE:
                since_s = self._free_since.setdefault(name, now_s)
            else:
                since_s = now_s
                self._free_since.pop(name, None)
            devices.append(_view(device, name, state, since_s))
        return ChainView(now_s, observed.mb, tuple(devices), max(0.0, observed.lat or 0.0), apart)

    def _decide(self, view: ChainView, may_wait: bool) -> Decision:
        """Decide by the policy; never pair devices that are not idle, never wait for nothing."""
        free = [device.peer_id for device in view.devices if device.state is DeviceState.FREE]
        if len(free) < 2:
            return Wait(f"{len(free)} of {len(view.devices)} may be paired; a pair needs two")
        decision = self._policy.decide(view)
        if isinstance(decision, Wait):
            return decision if may_wait else go_around(view, _pair_anyway(self._fallback, view, decision.reason))
        if decision.sender != decision.receiver and {decision.sender, decision.receiver} <= set(free):
            return go_around(view, decision)
        wrong = f"{self._policy.name} paired {decision.sender} and {decision.receiver}, which are not both idle"
        return go_around(view, _pair_anyway(self._fallback, view, wrong))

    def _tell_unknown(self, line: bytes) -> None:
        if self._warn is None:
            return
        given = _parse(line)
        _warn_unknown(self._warn, given, Observed, "")
        fields = {name: None for device in given["devices"] for name in device}
        _warn_unknown(self._warn, fields, ObservedDevice, " of a device")


def _pair_anyway(fallback: Policy, view: ChainView, why: str) -> Decision:
    decision = fallback.decide(view)
    if isinstance(decision, Wait):
        first, second = [device.peer_id for device in view.devices if device.state is DeviceState.FREE][:2]
        return Pair(first, second, f"first two free devices, as no other will come (instead of: {why})")
    return Pair(decision.sender, decision.receiver, f"{decision.reason} (instead of: {why})", decision.why)


# States that end by themselves, so that waiting ends.
_ENDING = (DeviceState.TRAINING, DeviceState.BUSY, DeviceState.SEND, DeviceState.GET)
_VALID = {
    "state": ", ".join(state.value for state in DeviceState),
    "kind": ", ".join(f"{kind.value} {kind.name.lower()}" for kind in UsageKind),
}
_DECODER = msgspec.json.Decoder(Observed)


def _decode(line: bytes) -> Observed:
    """Decode a line. Raises BadLineError that names the field."""
    if len(line) > MAX_LINE_BYTES:
        raise BadLineError(f"a line of {len(line)} bytes, at most {MAX_LINE_BYTES} are accepted")
    try:
        observed = _DECODER.decode(line)
    except msgspec.ValidationError as error:
        raise BadLineError(_find_field(_parse(line), error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadLineError(f"not one JSON object: {error}") from None
    except RecursionError:
        raise BadLineError("not one observation: nested too deep") from None
    _check(observed)
    return observed


def _parse(line: bytes) -> Any:
    """Parse any JSON on the line. Raises BadLineError if msgspec gives up."""
    try:
        return msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadLineError(f"not one observation: {error}") from None


def _find_field(given: Any, error: msgspec.ValidationError) -> str:
    """Name the wrong field and its device: msgspec names the field only."""
    devices = given.get("devices") if isinstance(given, dict) else None
    for index, device in enumerate(devices if isinstance(devices, list) else []):
        try:
            msgspec.convert(device, ObservedDevice)
        except msgspec.ValidationError as wrong:
            return f"devices[{index}]: {_plain(wrong)}"
    return _plain(error)


def _plain(error: msgspec.ValidationError) -> str:
    text = str(error).replace("`$.", "`")
    valid = next((valid for field, valid in _VALID.items() if f"`{field}`" in text), "")
    return f"{text} (valid: {valid})" if valid else text


def _check(observed: Observed) -> None:
    states: dict[str, DeviceState] = {}
    for index, device in enumerate(observed.devices):
        if str(device.id) in states:
            raise BadLineError(f"devices[{index}].id: {device.id!r} is there twice")
        states[str(device.id)] = device.state
    if observed.n is not None and observed.n != len(observed.devices):
        raise BadLineError(f"n: {observed.n}, but there are {len(observed.devices)} devices")
    for index, each in enumerate(observed.idle or ()):
        state = states.get(str(each))
        if state is None:
            raise BadLineError(f"idle[{index}]: no device has the id {each!r}")
        if state is not DeviceState.FREE:
            raise BadLineError(f"idle[{index}]: device {each!r} is {state.value!r}; only 'free' ones may be paired")
    for index, pair in enumerate(observed.apart or ()):
        if unknown := [each for each in pair if str(each) not in states]:
            raise BadLineError(f"apart[{index}]: no device has the id {unknown[0]!r}")


def _view(device: ObservedDevice, name: str, state: DeviceState, since_s: float) -> DeviceView:
    return DeviceView(
        name,
        state,
        link_mb_s=device.bw,
        merge_mb_s=device.compute,
        free_since_s=since_s,
        n_agg=device.nagg or 0,
        received=max(0, (device.nagg or 0) - (state is DeviceState.DONE)),  # a device that is done has sent once
        theta=1.0 if device.theta is None else device.theta,
        energy_j=device.energy or 0.0,
        battery_percent=device.battery,
        charging=device.charging,
        kind=device.kind or UsageKind.IDLE,
        device_class=device.cls,
        busy_for_s=max(0.0, device.busy_for or 0.0),
        eta_ready_s=max(0.0, device.eta_ready or 0.0),
        op_left_s=max(0.0, device.op_left or 0.0),
        may_receive=device.receives is not False,
    )


def _warn_unknown(warn: Callable[[str], None], given: dict[str, Any], kind: type[msgspec.Struct], where: str) -> None:
    known = kind.__struct_fields__
    for name in given:
        if name not in known:
            hint = did_you_mean(name, known) or f" (known: {', '.join(known)})"
            warn(f"field {name!r}{where} is unknown and ignored{hint}")
