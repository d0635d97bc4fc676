"""The model that this device would bring, built in a process of its own, and compared with the others' models."""

from __future__ import annotations

import subprocess
import sys
from typing import NamedTuple

import msgspec

from mdl.bounds import first_few, printable
from mdl.config import Config
from mdl.peers.doctor.finding import Finding, fail, note, ok
from mdl.peers.doctor.sight import Sight
from mdl.protocol.vocabulary import Role

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
    command = [sys.executable, "-P", "-c", "from mdl.peers.doctor.own_model import main; main()"]
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
