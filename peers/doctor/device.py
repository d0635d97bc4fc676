"""Checks of this machine and this device.

Checks of the machine alone: the needs of a peer to start, and to go on, and its power supply.

Checks of the device: its key, its name and place in the mesh, its clock, and if an owner has locked it out. The model
that it would bring is built in a process of its own, and compared with the others' models.

All checks, in the order in which things break: this machine, its network, the mesh, the way to each device.

Slow checks run side by side: torch is imported and multicast listened to while the mesh is looked at.
"""

from __future__ import annotations

import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

import msgspec
import psutil

from mdl.bounds import first_few, printable
from mdl.config import Config, MeshSection
from mdl.descriptors import LEAST, RAISE_IT, raise_limit, share_out, tell_too_few
from mdl.errors import ConfigError
from mdl.peers.doctor.mesh import Sight, check_mesh, look_at_mesh
from mdl.peers.doctor.network import (
    Finding,
    broken,
    check_addresses,
    check_hardware,
    check_interfaces,
    check_multicast,
    check_multicast_loss,
    check_port,
    check_wifi,
    fail,
    note,
    ok,
)
from mdl.peers.edge.identity import default_name, state_home
from mdl.peers.edge.membership import KEY_VARIABLE, device_key, key_path, name_here
from mdl.peers.edge.small import LEAST_MB, LITTLE_MB, read_memory_limit
from mdl.protocol.vocabulary import Role
from mdl.reading import read_system_line
from mdl.transport.discovery.interfaces import name_of
from mdl.transport.trust.keys import Mesh, fingerprint

# Bits of a Raspberry Pi's firmware (vcgencmd get_throttled): now, and since it was started.
_UNDER_VOLTAGE, _THROTTLED, _WAS_UNDER_VOLTAGE = 0x1, 0x4, 0x10000
# Below this a laptop goes to sleep in the middle of a round.
_EMPTY_PERCENT = 15


def check_power(system: Path) -> Iterator[Finding]:
    """Check a Raspberry Pi for under-voltage, as its kernel or its firmware tells; yield nothing on other machines."""
    alarms = sorted((system / "sys/class/hwmon").glob("hwmon*/in0_lcrit_alarm"))
    bits = _throttled(system)
    if not alarms and bits is None:
        return
    is_low = any(read_system_line(alarm) == "1" for alarm in alarms) or bool(bits and bits & _UNDER_VOLTAGE)
    supply = "use the 5.1 V supply that was made for it, and a short cable"
    if is_low:
        yield note("power", "under-voltage now: the processor is slowed down, and cards get damaged", supply)
    elif bits and bits & (_THROTTLED | _WAS_UNDER_VOLTAGE):
        yield note("power", "under-voltage or heat has slowed it down since it was started", supply)
    else:
        yield ok("power", "the supply is strong enough")


def check_battery(system: Path) -> Iterator[Finding]:
    """Report a nearly empty battery; yield nothing without one, or on a charger."""
    for supply in sorted((system / "sys/class/power_supply").glob("*")):
        left = read_system_line(supply / "capacity")
        if (
            read_system_line(supply / "type") != "Battery"
            or read_system_line(supply / "scope") == "Device"
            or not left.isdigit()
        ):
            continue
        if read_system_line(supply / "status") == "Discharging" and int(left) < _EMPTY_PERCENT:
            yield note("power", f"the battery has {left} %, and is not charged", "mdl peer --when charging waits")


def _throttled(system: Path) -> int | None:
    file = system / "sys/devices/platform/soc/soc:firmware/get_throttled"
    text = read_system_line(file)
    if not text and (command := shutil.which("vcgencmd")):
        asked = subprocess.run([command, "get_throttled"], capture_output=True, text=True, timeout=5, check=False)
        text = asked.stdout.partition("=")[2].strip()
    try:
        return int(text, 16)
    except ValueError:
        return None


# A Raspberry Pi takes 10 s to import torch from a cold card, an emulated one on a busy machine minutes.
_TORCH_S = 300.0
_OTHER_TORCH = "install torch from its own CPU index for this machine"
# torch's own wheels need instructions that a Raspberry Pi 3 or 4 lacks; Debian's is built for every 64-bit Arm.
_TORCH_OF_DEBIAN = (
    "sudo apt install python3-torch python3-venv; install mdl in a new environment that sees it: "
    "python3 -m venv --system-site-packages (docs/raspberry-pi.md)"
)
_LITTLE_DISK_MB, _TOO_LITTLE_DISK_MB = 200, 20
_BLOCK_BYTES = 4096
# With fewer links the mesh of a home does not fit.
_FEW_PEERS = 8
# An earlier year is wrong: a Pi without a battery for its clock starts in 1970 until the network tells it the time.
_FIRST_YEAR = 2025


def check_machine(state: Path, system: Path = Path("/")) -> Iterator[Finding]:
    """Check this machine. state: the directory that a peer writes to. system: the root of /sys and /proc, for tests."""
    yield check_descriptors(raise_limit())
    yield check_memory(psutil.virtual_memory().available >> 20, read_memory_limit(system))
    yield check_disk(state)
    yield check_clock(time.gmtime(time.time()).tm_year)
    yield from check_power(system)
    yield from check_battery(system)


def check_torch(python: str = sys.executable, machine: str = platform.machine()) -> Finding:
    """Import torch in a process of its own: a wheel for another processor ends it by a signal.

    machine: the processor's kind, which decides what to install instead.
    """
    try:
        tried = subprocess.run(
            [python, "-P", "-c", "import torch; torch.ones(8).sum().item(); print(torch.__version__)"],
            capture_output=True,
            text=True,
            timeout=_TORCH_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return fail(
            "torch", f"importing torch takes more than {_TORCH_S:.0f} s", "look at memory and disk: it may swap"
        )
    if tried.returncode == 0:
        return ok("torch", f"torch {tried.stdout.strip()} works")
    remedy = _TORCH_OF_DEBIAN if machine == "aarch64" else _OTHER_TORCH
    if tried.returncode < 0:
        name = signal.Signals(-tried.returncode).name
        return fail("torch", f"importing torch ends with {name}: it was built for another processor", remedy)
    last = (tried.stderr.strip().splitlines() or ["no reason given"])[-1]
    return fail("torch", f"torch cannot be imported: {last[:300]}", remedy)


def check_descriptors(limit: int) -> Finding:
    peers = share_out(limit).peers
    told = f"{limit} files may be open: links to {peers} devices"
    if limit < LEAST:
        return fail("descriptors", tell_too_few(limit).partition(";")[0], RAISE_IT)
    return note("descriptors", told, RAISE_IT) if peers < _FEW_PEERS else ok("descriptors", told)


def check_memory(free_mb: int, limit_mb: int | None = None) -> Finding:
    """Check the free memory. limit_mb: of this process's container or service."""
    told = f"{free_mb} MB of memory are free"
    if limit_mb is not None and limit_mb < free_mb:
        told, free_mb = f"{limit_mb} MB of memory may be taken here (a container's or service's limit)", limit_mb
    if free_mb < LEAST_MB:
        return fail(
            "memory", told, f"a small peer takes 270 MB: end other programs, or add swap (at least {LITTLE_MB} MB)"
        )
    if free_mb < LITTLE_MB:
        return note("memory", told, "a small peer takes 270 MB; training may be slow: end other programs")
    return ok("memory", told)


def check_disk(state: Path) -> Finding:
    """Check that the directory, or its nearest existing parent, can be written and has room."""
    there = next(place for place in (state, *state.parents) if _exists(place))
    if why := why_not_writable(there):
        give = f"give it to this user, or start with --out elsewhere ({state})"
        return fail("disk", f"{there} cannot be written: {why}", give)
    free_mb = shutil.disk_usage(there).free >> 20
    told = f"{free_mb} MB are free at {there}"
    if free_mb < _TOO_LITTLE_DISK_MB:
        return fail("disk", told, "make room: a peer saves its model in each round", "start with --out on another disk")
    return note("disk", told, "make room for models and metrics") if free_mb < _LITTLE_DISK_MB else ok("disk", told)


def why_not_writable(folder: Path) -> str:
    """Return why no file can be made in the folder, or its nearest existing parent; "" if it can."""
    there = next(place for place in (folder, *folder.parents) if _exists(place))
    try:
        with tempfile.TemporaryFile(dir=there, buffering=0) as file:
            file.write(bytes(_BLOCK_BYTES))
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return ""


def check_clock(year: int) -> Finding:
    if year < _FIRST_YEAR:
        do = "sudo timedatectl set-ntp true; hours in --when and the times of logs are wrong until then"
        return note("clock", f"the clock says {year}", do)
    return ok("clock", "the clock is plausible")


def _exists(place: Path) -> bool:
    try:
        return place.exists()
    except OSError:  # this user may not even look there
        return False


# Smaller differences of two clocks disturb neither people nor logs.
_CLOCKS_S = 30.0
_NEW_DEVICE = "remove the file, and this is a new device (mdl mesh revoke, on an owner's device, locks the old one out)"


def check_key() -> Finding:
    """Check that this device has a key, and will still have it at its next start."""
    try:
        device = device_key()
        kept = bool(os.environ.get(KEY_VARIABLE)) or key_path().exists()
    except (ConfigError, OSError) as error:
        return fail("device", str(error), _NEW_DEVICE, "MDL_KEY=@FILE names another key")
    folder = key_path().parent
    why = why_not_writable(folder)
    give = f"give it to this user: sudo chown -R $USER {folder}"
    if not kept:
        told = f"its key cannot be kept in {folder} ({why}): it would be another device at each start"
        return fail("device", told, give, "MDL_KEY=@FILE names a key that is kept elsewhere")
    if why:
        return note("device", f"the list of the mesh's members cannot be kept in {folder} ({why})", give)
    return ok("device", f"this device is {fingerprint(device.public)}")


def check_standing(sight: Sight) -> Iterator[Finding]:
    """Check how the mesh sees this device, under the name that a peer here would have."""
    membership = sight.membership
    if membership is None:  # without encryption devices cannot be told apart
        return
    name, device = default_name(), membership.device.public
    if why := membership.why_out():
        yield fail(
            "device", why, "ask an owner of the mesh", "become another device: another user, or MDL_KEY=@NEW-FILE"
        )
        return
    for info in sight.known:
        if info.role is Role.OBSERVER or name_of(info.host) or not info.proof:
            continue
        if info.proof.enrolled.device == device:
            told = f"{info.peer_id} at {info.host} has this device's key: a copied card or home directory"
            do = f"on one of the two: rm {key_path()}, and another host name"
            yield fail("device", told, do) if info.peer_id == name else note("device", told, do)


def check_clocks(sight: Sight) -> Iterator[Finding]:
    """Compare the clocks of devices: a wrong one makes times of logs and the hours of `--when` wrong."""
    wrong = {who: ahead_s for who, ahead_s in sight.clocks_s.items() if abs(ahead_s) >= _CLOCKS_S}
    if not wrong:
        return
    told = ", ".join(f"{who}'s is {_tell_time(ahead_s)}" for who, ahead_s in sorted(wrong.items())[:4])
    whose = "this machine's clock, or theirs: " if len(wrong) > 1 else ""
    do = "on the one that is wrong: sudo timedatectl set-ntp true, or sudo date --set ..."
    yield note("clock", f"clocks differ: {whose}{told}", do)


def _tell_time(ahead_s: float) -> str:
    seconds = abs(ahead_s)
    amount = next(
        f"{seconds / unit_s:.0f} {unit}"
        for unit, unit_s in (("days", 86_400), ("hours", 3_600), ("minutes", 60), ("seconds", 1))
        if seconds >= 2 * unit_s
    )
    return f"{amount} {'ahead' if ahead_s > 0 else 'behind'}"


# The most directories of peers that are checked: more names than a machine has.
_MOST = 64


def check_name(sight: Sight, home: Path) -> Iterator[Finding]:
    """Check this device's names. home: the directories of this user's peers of the mesh, running or not."""
    membership = sight.membership
    if membership is None or membership.why_out():  # without encryption devices cannot be told apart
        return
    device, host = membership.device.public, default_name()
    started = [path.name for path in sorted(home.glob("*"))[:_MOST] if path.is_dir()]
    for name in dict.fromkeys((host, *started)):
        rivals = [each for each in membership.roster.rivals(name, device)
                  if not membership.roster.has_given_up(each.device, name)]  # fmt: skip
        if not rivals:
            continue
        other = f"{name!r} is the name of another device of the mesh ({fingerprint(rivals[0].device)})"
        if name != host:
            do = f"mdl peer --name ANOTHER; if this one takes its place: mdl mesh revoke {name}, on an owner's device"
            yield fail("device", f"{other}: this one is refused under it", do)
            continue
        own = name_here(membership)
        do = f"if this one takes its place: mdl mesh revoke {name}, on an owner's device; then: mdl peer --name {name}"
        yield note("device", f"{other}: a peer here calls itself {own!r}", do)


# With a large recording the build may take longer: then the model is not checked.
_BUILD_S = 60.0
_NAMED = 4


class OwnModel(NamedTuple):
    """schema_hash: as others know it. told: its shape, for people. problem: why it cannot be built, or ""."""

    schema_hash: str = ""
    told: str = ""
    problem: str = ""


def build_own_model(config: Config) -> OwnModel | None:
    """Build the model in a process of its own; return None if that takes too long."""
    command = [sys.executable, "-P", "-c", "from mdl.peers.doctor.device import main; main()"]
    try:
        done = subprocess.run(
            command, input=msgspec.json.encode(config), capture_output=True, timeout=_BUILD_S, check=False
        )
    except subprocess.TimeoutExpired:
        return None
    if done.returncode == 0:
        return msgspec.json.decode(done.stdout.splitlines()[-1], type=OwnModel)
    last = (done.stderr.decode(errors="replace").strip().splitlines() or ["no reason given"])[-1]
    return OwnModel(problem=last)


def check_own_model(own: OwnModel | None, sight: Sight) -> Finding:
    """Compare with all trainers of the mesh that are announced or introduced."""
    if own is None:
        return note(
            "model", f"reading the data takes more than {_BUILD_S:.0f} s: this device's model was not looked at"
        )
    if own.problem:
        return fail(
            "model", f"this device's model cannot be built: {own.problem}", "mdl data inspect tells of the data"
        )
    told = printable(own.told, 120)
    trainers = {
        each.peer_id: each.schema for each in sight.announced if each.of_ours and each.role == Role.TRAINER.value
    }
    trainers |= {info.peer_id: info.schema_hash for info in sight.known if info.role is Role.TRAINER}
    schemas = {peer_id: schema for peer_id, schema in trainers.items() if schema}
    others = sorted(peer_id for peer_id, schema in schemas.items() if schema != own.schema_hash)
    if others:
        who = first_few(others, _NAMED)
        do = (
            "give all the same --model, and data of the same classes, channels and window; mdl data inspect tells yours"
        )
        return fail(
            "model", f"this device would bring {told}; {who} train another model, and one of the two is refused", do
        )
    same = f", as {len(schemas)} here" if schemas else "; nobody trains here yet"
    return ok("model", f"this device would bring {told}{same}")


def main() -> None:
    """Read a configuration from stdin and write the `OwnModel` to stdout; runs in a process of its own."""
    from mdl.errors import MdlError

    config = msgspec.json.decode(sys.stdin.buffer.read(), type=Config)
    try:
        from mdl.peers.edge.device import describe_own

        schema_hash, told = describe_own(config)
    except MdlError as error:
        own = OwnModel(problem=str(error))
    else:
        own = OwnModel(schema_hash, told)
    sys.stdout.buffer.write(msgspec.json.encode(own) + b"\n")


_NEW_MESH = "mdl mesh new home makes one; on the other devices: mdl doctor --code @FILE with that code"


def examine(
    find_mesh: Callable[[], Mesh], section: MeshSection, wait_s: float, config: Config | None = None
) -> Iterator[Finding]:
    """Yield all findings. find_mesh: raises ConfigError if there is no join code, or a wrong one.

    wait_s: for the others, at most. config: of the peer that is to run here, if its model is to be checked, too.
    """
    with ThreadPoolExecutor(4) as beside:
        torch = beside.submit(check_torch)  # takes seconds; this process need not hold it
        model = beside.submit(build_own_model, config) if config else None
        machine = list(check_machine(state_home("mesh")))
        yield from machine
        key = check_key()
        yield key
        interfaces, own = check_interfaces(section)
        yield interfaces
        multicast = beside.submit(check_multicast, own)
        hardware = beside.submit(check_hardware, own)
        port = check_port(section)
        mesh = _find(find_mesh)
        descriptors = [finding for finding in machine if finding.check == "descriptors"]
        is_able = bool(own) and not broken([*descriptors, key, port])
        look = look_at_mesh(mesh, section, own, wait_s) if is_able and isinstance(mesh, Mesh) else nullcontext()
        with look as sight:
            yield from check_addresses(own)
            yield from hardware.result()
            yield from check_wifi(own)
            yield from multicast.result()
            if own:
                yield port
            yield torch.result()
            if isinstance(mesh, Finding):
                yield mesh
            elif sight:
                yield from check_clocks(sight)
                yield from check_standing(sight)
                yield from check_name(sight, state_home(mesh.name))
                yield from check_mesh(mesh, section, own, sight)
                yield from check_multicast_loss(own, {info.host for info in sight.heard})
                if model and not broken([torch.result()]):
                    yield check_own_model(model.result(), sight)


def exit_code(findings: list[Finding]) -> int:
    """Return 0 if a mesh would work, 3 if only the other devices are missing, else 4."""
    failed = broken(findings)
    if not failed:
        return 0
    return 3 if all(finding.check == "members" for finding in failed) else 4


def _find(find_mesh: Callable[[], Mesh]) -> Mesh | Finding:
    try:
        return find_mesh()
    except ConfigError as error:
        return fail("code", str(error), _NEW_MESH)
