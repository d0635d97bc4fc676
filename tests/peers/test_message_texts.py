"""A text of a message that is parsed later is parsed by the decoder; consumers take whatever it lets through."""

from __future__ import annotations

import contextlib
import io
import random
import re
import typing
from collections.abc import Iterator
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import inspect
from rich.console import Console

from mdl.bounds import parse_host
from mdl.errors import LocalProtocolError, RemoteProtocolError
from mdl.peers.roles.outsiders import Observer
from mdl.peers.view.snapshot import Told, take_snapshot
from mdl.peers.view.terminal import describe_summary, draw_mesh
from mdl.peers.web.prometheus import make_metrics
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import Received
from mdl.protocol.messages import Hello, PeersKnown
from mdl.protocol.statements import Proof
from mdl.protocol.status_messages import MeshStatus
from mdl.protocol.vocabulary import PeerInfo, Role
from mdl.task import task_difference
from mdl.transport.discovery.directory import Scopes, address_of, is_link_local, is_loopback
from mdl.transport.discovery.interfaces import LOOPBACK, choose_host
from mdl.transport.wire.codec import Envelope, decode, encode
from tests.fuzz.hostile import Hostile, forced, info_of
from tests.transport.wire.test_codec import BODIES, ME, PROVEN

# What each text of a message is, by its pattern: a name of a bounded alphabet, a line for people, a word, a digest.
_SHOWN_OR_COMPARED = {"PeerId", "SomePeerId", "Text", "Word", "SchemaHash", "HexDigest", "ForkName"}
# Texts that are parsed, with the field that holds them: the decoder parses them, too (`__post_init__`).
PARSED = {"PeerInfo.host", "Proof.hosts", "CodeTold.code"}
# Lines for people that are also looked into, by what takes any line: see `test_consumers_take_any_line`.
LOOKED_INTO = {
    "PeerReport.model",
    "LessonWanted.model",
    "MeshStatus.phase",
    "MemberStatus.problem",
    "HopSummary.reason",
}
# Nearly addresses: what a pattern lets through, and other spellings that some systems know.
NEARLY = (
    "1.2",
    "127.1",
    "1.2.3",
    ":::",
    "1:2:3",
    "127.0.0.256",
    "127.0.0.01",
    "0x7f.1",
    "12345",
    "....",
    "::1::",
    "fe80::1:",
    "1.2.3.4.5",
    "::1.2.3",
)


def patterns() -> dict[str, str]:
    """The name of each kind of text in `mdl`, by its pattern."""
    import mdl.bounds
    import mdl.protocol.vocabulary

    found = {}
    for module in (mdl.bounds, mdl.bounds, mdl.protocol.vocabulary):
        for name, kind in vars(module).items():
            if typing.get_origin(kind) is typing.Annotated and get_args(kind)[0] is str:
                found[inspect.type_info(kind).pattern] = name
    return found


def texts(kind: inspect.Type, where: str, seen: set[object]) -> Iterator[tuple[str, inspect.StrType]]:
    """Every text of a type, with the field that holds it."""
    match kind:
        case inspect.StructType(cls=cls, fields=fields):
            if cls not in seen:
                seen.add(cls)
                for field in fields:
                    yield from texts(field.type, f"{cls.__name__}.{field.encode_name}", seen)
        case inspect.UnionType(types=types) | inspect.TupleType(item_types=types):
            for each in types:
                yield from texts(each, where, seen)
        case inspect.DictType(key_type=key, value_type=value):
            yield from texts(key, where, seen)
            yield from texts(value, where, seen)
        case inspect.VarTupleType(item_type=item):
            yield from texts(item, where, seen)
        case inspect.StrType():
            yield where, kind


def test_every_text_is_of_a_kind_that_is_shown_or_compared_or_its_struct_parses_it() -> None:
    names, found = patterns(), dict(texts(inspect.type_info(Envelope), "", set()))
    assert len(found) > 40
    parsed = {where for where, text in found.items() if names.get(text.pattern) not in _SHOWN_OR_COMPARED}
    assert parsed | {"CodeTold.code"} == PARSED
    assert set(found) >= PARSED | LOOKED_INTO


@given(st.text(alphabet="0123456789abcdefABCDEF:.", max_size=39) | st.sampled_from(NEARLY), st.sampled_from(range(3)))
@example("1.2", 0)
def test_what_is_no_address_is_refused_by_the_decoder_and_all_else_can_be_used(text: str, where: int) -> None:
    """One Hello with hosts ("127.0.0.1", "1.2") ended every process of a mesh."""
    proof = PROVEN.proof
    assert proof is not None
    infos = (
        forced(PROVEN, {"proof": forced(proof, {"hosts": ("127.0.0.1", text)})}),
        forced(PROVEN, {"proof": forced(proof, {"hosts": (text,)})}),
        forced(PROVEN, {"host": text}),
    )
    for body in (Hello(infos[where]), PeersKnown((PROVEN, infos[where]))):
        try:
            told = decode(encode(ME, body)).body
        except RemoteProtocolError:
            continue
        info = told.me if isinstance(told, Hello) else told.peers[1]
        use(info)


def use(info: PeerInfo) -> None:
    """All that a node does with where a peer says that it is."""
    if not info.host:
        return
    proof = info.proof
    assert proof is not None
    parse_host(info.host)
    is_link_local(info.host)
    is_loopback(info.host)
    choose_host(proof.hosts, [LOOPBACK])
    choose_host(proof.hosts, [], is_on_link=True)
    scopes = Scopes()
    for host in (info.host, *proof.hosts):
        scopes.note(host)
        scopes.follow(host, info.host)
        scopes.dial(host)
    with contextlib.suppress(RemoteProtocolError):  # where nobody can be reached
        address_of(info).endpoint()


@pytest.mark.parametrize("text", NEARLY)
def test_a_struct_that_carries_no_address_cannot_be_made(text: str) -> None:
    with pytest.raises(ValueError, match=r"address|octet|characters|colon|permitted|part"):
        PeerInfo("a", 1, Role.TRAINER, text, 1)
    proof = PROVEN.proof
    assert proof is not None
    with pytest.raises(ValueError):
        Proof(proof.enrolled, 1, ("127.0.0.1", text), 1)


def test_a_text_that_is_no_code_is_refused_by_the_decoder() -> None:
    code = next(body for body in BODIES if type(body).__name__ == "CodeTold")
    for text in ("", "home", "home:", "home:2222", "HOME:2222-2222-2222-2222-2222", "x" * 256):
        with pytest.raises(RemoteProtocolError):
            decode(encode(ME, forced(code, {"code": text})))
    assert decode(encode(ME, code)).body == code


_LINES = st.text(max_size=256) | st.sampled_from(
    ("lenet 3x128 at 5e-324 Hz -> a", "m 1x1 at 1e999 Hz [a, b] -> labels: x", "x" * 256, " of " * 64, "1x1 " * 64)
)


@given(_LINES, _LINES)
def test_a_line_about_a_task_may_say_anything(yours: str, ours: str) -> None:
    assert isinstance(task_difference(yours, ours), str)


# Lines that are looked into somewhere, and what could be taken for a mark, a format or a name there.
_SAID = (
    "",
    "a",
    "a.1.2",
    "total",
    "merged",
    "lost",
    "0" * 32,
    "silent: ",
    "refused: x: y",
    "waiting: 2 of 5 still",
    "fifo: ",
    "[red]x[/]",
    "[/",
    "%s %(x)d {0}",
    "-1",
    "1e999",
    "x" * 256,
    "ä: ß (60 % counts)",
    "<script>",
    "a -> b",
)


class Within(Hostile):
    """Makes messages that a decoder lets through: at the edges of all bounds, and not beyond them."""

    def make(self, kind: Any, name: str = "") -> Any:
        if isinstance(kind, inspect.StrType):
            fitting = [text for text in _SAID if re.search((kind.pattern or "").replace(r"\Z", "$"), text)]
            return self.rng.choice([text for text in fitting if len(text) <= (kind.max_length or 256)])
        made = super().make(kind, name)
        if isinstance(kind, inspect.IntType | inspect.FloatType):
            made = 1.0 if made != made else made
            most = kind.le if kind.le is not None else (kind.lt or 1 << 63) - 1
            return max(kind.ge if kind.ge is not None else made, min(most, made))
        return made


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_consumers_take_any_line_of_a_status(seed: int) -> None:
    """Whatever the decoder lets through can be shown: by the terminal, the page and the metrics."""
    hostile, console, shown = Within(random.Random(seed)), Console(file=io.StringIO()), 0
    for _ in range(20):
        try:
            status = decode(encode(Contributor("boss", 1), hostile.make(info_of(MeshStatus)))).body
        except (RemoteProtocolError, LocalProtocolError):
            continue
        assert isinstance(status, MeshStatus)
        show(status, console)
        shown += 1
    assert shown > 5


def show(status: MeshStatus, console: Console) -> None:
    for summary in status.finished:
        assert describe_summary(summary).isprintable()
    observer = Observer(Contributor("eye", 1))
    observer.handle(Received(Contributor("boss", 1), status), 0.0)
    snapshot = take_snapshot(Told("home", "", status, 0.0, status.finished))
    console.print(draw_mesh(snapshot, status.finished))
    msgspec.json.encode(snapshot)
    make_metrics(lambda: snapshot)()
