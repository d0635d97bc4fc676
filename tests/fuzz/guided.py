"""Coverage-guided fuzzing of what reads bytes of others, where `atheris` is installed (it is no dependency).

    python -m tests.fuzz.guided --seconds 300

Each input's first byte chooses what reads the rest. What is refused must be refused by the reader's own error;
libFuzzer keeps what reaches new branches of this project, and stops at the first input that raises anything else.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable
from ipaddress import IPv4Interface


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=300)
    parser.add_argument("--corpus", default="", help="a folder to begin with, and to keep what is new in")
    given = parser.parse_args()
    try:
        import atheris
    except ImportError:
        print("guided: atheris is not installed: pip install atheris", file=sys.stderr)
        return 2
    with atheris.instrument_imports(include=["mdl"]):
        readers = _readers()
    logging.disable(logging.CRITICAL)

    def read(data: bytes) -> None:
        if data:
            readers[data[0] % len(readers)](data[1:])

    atheris.Setup([sys.argv[0], f"-max_total_time={given.seconds}", *([given.corpus] if given.corpus else [])], read)
    atheris.Fuzz()
    return 0


def _readers() -> list[Callable[[bytes], object]]:
    from mdl.errors import ConfigError, DataError, RemoteProtocolError
    from mdl.protocol.messages import PeersKnown
    from mdl.sim.plans.fault_plan import load_plan
    from mdl.transport.discovery.mdns import read_description
    from mdl.transport.links.standing import LinkStanding
    from mdl.transport.trust.invitation import Invitation
    from mdl.transport.trust.keys import MeshKeys, new_join_code, parse_join_code
    from mdl.transport.trust.membership import Membership
    from mdl.transport.wire.bulk import read_segment
    from mdl.transport.wire.codec import RosterTold, decode, encode

    keys = MeshKeys.from_code(new_join_code("home", bytes(range(19))))
    me = Membership(keys)
    me.join("me")
    standing = LinkStanding("me", me, lambda: ["x"], tuple, 0.0)
    own = [IPv4Interface("10.0.0.1/24")]

    def hear(data: bytes) -> None:
        envelope = decode(data)
        if decode(encode(envelope.sender, envelope.body)) != envelope:
            raise AssertionError("does not survive the codec")
        match envelope.body:
            case RosterTold() as told:
                standing.hear("x", told, 0.0)
            case PeersKnown(peers=peers):
                for info in peers:
                    standing.admits(info, "x", 0.0)

    def announce(data: bytes) -> None:
        pieces = data.decode("utf-8", "replace").split("\0")
        record = {key: value for key, _, value in (piece.partition("=") for piece in pieces)}
        read_description({"fingerprint": keys.fingerprint, "version": "6", **record}, 1, keys, "home", own)

    def invite(data: bytes) -> None:
        inviting = Invitation("a b c", "code", 0.0).begin("10.0.0.1")
        inviting.handle(data[:33], 0.0)
        inviting.handle(data[33:], 0.0)

    readers: list[tuple[Callable[[bytes], object], tuple[type[Exception], ...]]] = [
        (hear, (RemoteProtocolError,)),
        (announce, (RemoteProtocolError,)),
        (invite, (RemoteProtocolError,)),
        (lambda data: read_segment(memoryview(data)), (RemoteProtocolError,)),
        (lambda data: parse_join_code(data.decode("utf-8", "replace")), (ConfigError,)),
        (load_plan, (DataError, ConfigError)),
    ]
    return [_guarded(reader, errors) for reader, errors in readers]


def _guarded(reader: Callable[[bytes], object], errors: tuple[type[Exception], ...]) -> Callable[[bytes], object]:
    def read(data: bytes) -> None:
        try:
            reader(data)
        except errors as error:
            if not str(error).isprintable():
                raise AssertionError(f"{error!r}") from None

    return read


if __name__ == "__main__":
    sys.exit(main())
