"""Everything that reads bytes or text from others, under damaged, hostile and random input.

Each case makes valid input of its kind, damages it, and decodes it. What is refused must be refused by the decoder's
own error, in one printable line if a message is; what is not must be usable, and read the same again where it can be
written.
"""

from __future__ import annotations

import contextlib
import io
import logging
import random
import shutil
import tempfile
import zipfile
from contextlib import suppress
from dataclasses import replace
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Any, get_args

import msgspec
import numpy as np

from mdl.bounds import UNREADABLE
from mdl.config import Config, load_config, show_config
from mdl.data.readers.arrays import ArrayOptions, read_npz
from mdl.data.readers.csv_streams import CsvOptions, read_csv
from mdl.data.readers.places import PlaceOptions, read_places
from mdl.data.sources import parse_spec
from mdl.devices.scenario import load_scenarios, save_scenarios
from mdl.errors import ConfigError, DataError, LocalProtocolError, MdlError, RemoteProtocolError
from mdl.files.ballot import BALLOT, BallotFile
from mdl.files.checkpoint import CachedModel, ModelCache
from mdl.files.figures import read_rounds
from mdl.peers.edge.resume import Origin, restore_state
from mdl.peers.trials.run_plan import run_plan
from mdl.peers.trials.story_file import RecordedStory, load_story, replay_story, save_stories, tell_entries
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import Received
from mdl.protocol.messages import SEGMENTS, Said
from mdl.protocol.round_messages import DeltaMessage
from mdl.protocol.segments import LARGEST_SEGMENT_BYTES
from mdl.protocol.statements import AnyStatement
from mdl.protocol.vocabulary import Ballot, Counted, Fork, History, LineagePoint, PeerInfo, Role
from mdl.sim.plans.draw_plan import draw_plan
from mdl.sim.plans.fault_plan import dump_plan, load_plan
from mdl.sim.timing.scenario import draw_scenario
from mdl.transport.discovery.directory import Directory, parse_address
from mdl.transport.discovery.mdns import describe, read_description
from mdl.transport.limits import LogLimit
from mdl.transport.links.introducer import RosterTalk
from mdl.transport.links.transfers import Transfers, check_frames
from mdl.transport.trust.keys import DeviceKey, MeshKeys, founder_mark, new_join_code, parse_join_code
from mdl.transport.trust.membership import Membership
from mdl.transport.trust.roster import Roster
from mdl.transport.wire.bulk import MAX_OUTGOING
from mdl.transport.wire.codec import CHUNK_BYTES, Body, ChunkSent, RosterTold, decode, encode
from mdl.transport.wire.incoming import MAX_INCOMING
from tests.fuzz.hostile import Hostile, damage, forced, info_of, revocation
from tests.fuzz.machines import MeshCase, Misbehaved

ME = Contributor("me", 3)
# A model of a story that is replayed here; larger ones are held to their own bound, and take seconds each.
_REPLAYED_VALUES = 10_000


class _Case:
    """seed: all that is made follows from it."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.hostile = Hostile(self.rng)

    def step(self) -> bool:
        """Decode one input; whether it was refused."""
        try:
            self._decode()
        except self.errors as error:
            if isinstance(error, RemoteProtocolError) and not str(error).isprintable():
                raise Misbehaved(f"an error that is not one printable line: {error!r}") from None
            return True
        return False

    errors: tuple[type[Exception], ...] = (RemoteProtocolError,)

    def _decode(self) -> None:
        raise NotImplementedError


class WireCase(_Case):
    """Header frames: damaged, of hostile fields, or random."""

    kinds: tuple[type[Any], ...] = (*get_args(Said), *(kind for kind in get_args(Body) if kind not in get_args(Said)))

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._frames = [self._made(kind) for kind in self.kinds]

    def _made(self, kind: type[Any]) -> bytes:
        """One that can be said: some are made up larger than a message may be."""
        while True:
            with contextlib.suppress(LocalProtocolError):
                return encode(ME, self.hostile.make(info_of(kind)))

    def _decode(self) -> None:
        rng = self.rng
        chance = rng.random()
        if chance < 0.1:
            frame = rng.randbytes(rng.choice((0, 1, 3, 20, 300)))
        elif chance < 0.5:
            frame = damage(rng.choice(self._frames), rng)
        else:
            try:
                frame = encode(ME, self.hostile.make(info_of(rng.choice(self.kinds))))
            except MdlError:
                raise RemoteProtocolError("beyond what can be encoded") from None
            self._frames[rng.randrange(len(self._frames))] = frame
        envelope = decode(frame)
        self.hostile.learn(envelope.body)
        if decode(encode(envelope.sender, envelope.body)) != envelope:
            raise Misbehaved(f"{envelope.body!r} does not survive the codec")


class _Frame:
    """What `transport` needs of a ZeroMQ frame."""

    def __init__(self, data: bytes) -> None:
        self.buffer = memoryview(data)
        self.bytes = data

    def __len__(self) -> int:
        return len(self.bytes)


class BulkCase(_Case):
    """Bulk values both ways: offers, credit, chunks and segments that fit together, or do not."""

    kinds: tuple[type[Any], ...] = (*(kind for kind in get_args(Body) if kind not in get_args(Said)), *SEGMENTS)

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._size = self.rng.choice((1, 100, CHUNK_BYTES // 4, CHUNK_BYTES))
        self._transfers = Transfers(4 * self._size, LogLimit(logging.getLogger("fuzz")))
        self._now = 0.0

    def _decode(self) -> None:
        rng, transfers = self.rng, self._transfers
        self._now += rng.choice((0.0, 0.001, 0.1, 2.0))
        if rng.random() < 0.1:
            transfers.on_time(self._now)
            due = transfers.deadline()
            if due is not None and due < self._now - 1e-6:
                raise Misbehaved(f"due at {due}, before {self._now}")
        if rng.random() < 0.02:
            message = self.hostile.make(info_of(DeltaMessage))
            transfers.send(rng.choice(("ann", "bob")), message, _some_values(self._size), self._now)
        body = self.hostile.make(info_of(rng.choice(self.kinds)))
        body = self._near(body)
        try:
            envelope = decode(encode(Contributor(rng.choice(("ann", "bob", "x")), rng.randrange(2)), body))
        except MdlError:
            raise RemoteProtocolError("beyond what can be encoded") from None
        frames: Any = [_Frame(b"")]
        if rng.random() < (0.95 if isinstance(body, (ChunkSent, *SEGMENTS)) else 0.02):
            length = rng.choice((0, 1, 4, 400, min(CHUNK_BYTES, 4 * self._size), CHUNK_BYTES + 1))
            frames.append(_Frame(bytes(length)))
        check_frames(envelope, frames)
        for step in transfers.take(envelope, frames, self._now):
            if isinstance(step, Received) and isinstance(step.message, SEGMENTS):
                self._check_segment(step.values)
        incoming = len(transfers._incoming)
        if incoming > MAX_INCOMING or len(transfers) > MAX_OUTGOING:
            raise Misbehaved(f"{incoming} transfers in, {len(transfers)} out")

    @staticmethod
    def _check_segment(values: Any) -> None:
        if values is None or not 0 < values.nbytes <= LARGEST_SEGMENT_BYTES or values.flags.writeable:
            raise Misbehaved(f"a segment with {values!r}")

    def _near(self, body: Any) -> Any:
        changes = {name: self.rng.randrange(4) for name in ("transfer_id",) if hasattr(body, name)}
        if hasattr(body, "size_bytes") and self.rng.random() < 0.8:
            changes["size_bytes"] = self.rng.choice((4 * self._size, 4 * self._size - 1))
        if hasattr(body, "offset_bytes") and self.rng.random() < 0.8:
            changes["offset_bytes"] = self.rng.choice((0, 0, CHUNK_BYTES, 4))
        return forced(body, changes)


def _some_values(size: int) -> Any:
    return np.zeros(size, np.float32)


class RosterCase(_Case):
    """Statements and proofs: forged, of owners who are out, of several codes; what remains is told to another one."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        devices = [DeviceKey.of(self.rng.randbytes(32)) for _ in range(5)]
        mark = founder_mark(devices[0].public)
        self._keys = _MESH_KEYS.setdefault("home", MeshKeys.from_code(new_join_code("home", bytes(19))))
        self._keys = replace(self._keys, mark=mark, mesh_id=f"home:{mark}")
        self._members = [Membership(self._keys, device) for device in devices]
        self._me = Membership(self._keys)
        self._talk = RosterTalk(self._me.roster, 0.0)
        self._now = 0.0

    def _decode(self) -> None:
        rng, me = self.rng, self._me
        self._now += rng.choice((0.0, 0.5, 40.0))
        speaker, name = rng.choice(self._members), rng.choice(("ann", "bob", "cleo", "x"))
        if rng.random() < 0.3:
            info = PeerInfo(name, rng.randrange(1, 4), rng.choice(list(Role)), "10.0.0.1", 5)
            info = speaker.introduce(info, 6, ["10.0.0.1", "10.0.0.2"], rng.randrange(1, 9))
            info = self.hostile.change(info) if rng.random() < 0.5 else info
            me.admit(_received(info, PeerInfo))
        else:
            said = tuple(self._statement(speaker, name) for _ in range(rng.randrange(4)))
            told = _received(
                RosterTold(rng.choice((bytes(16), me.roster.digest)), said, rng.random() < 0.5), RosterTold
            )
            self._talk.hear(name, told, self._now)
        self._check()

    def _statement(self, speaker: Membership, name: str) -> Any:
        rng, other = self.rng, self.rng.choice(self._members).device.public
        match rng.randrange(5):
            case 0:
                made: Any = speaker.enrol(name)
            case 1:
                made = speaker.name_owner(other)
            case 2:
                made = revocation(speaker, other, rng.randrange(9), "lost")
            case 3:
                for statement in self._me.roster.statements():
                    with suppress(RemoteProtocolError):
                        speaker.roster.add(statement)
                made = speaker.change_code(rng.choice((self._keys.code_hash, bytes(16))))
            case _:
                made = self.hostile.make(info_of(rng.choice(get_args(AnyStatement))))
        return self.hostile.change(made) if rng.random() < 0.2 else made

    def _check(self) -> None:
        roster = self._me.roster
        again = Roster(self._keys, roster.statements())
        if again.digest != roster.digest:
            raise Misbehaved("a restart changes what is known of the mesh")
        if self._members[0].device.public in {each.device for each in roster.revocations()}:
            raise Misbehaved("the founder is revoked")
        if any(roster.is_revoked(each.device) for each in roster.members()):
            raise Misbehaved("who is revoked is a member")
        if roster.owners() & {each.device for each in roster.revocations()}:
            raise Misbehaved("who is revoked owns the mesh")


# Deriving keys takes a tenth of a second.
_MESH_KEYS: dict[str, MeshKeys] = {}


def _received(said: Any, kind: type) -> Any:
    """As it comes out of a message. Raises RemoteProtocolError."""
    try:
        return msgspec.msgpack.decode(msgspec.msgpack.encode(said), type=kind)
    except (*UNREADABLE, OverflowError) as error:
        raise RemoteProtocolError(type(error).__name__) from None


class DirectoryCase(_Case):
    """Introductions, own and others', of any number of peers and starts."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._directory = Directory("me")
        self._now = 0.0

    def _decode(self) -> None:
        rng = self.rng
        self._now += rng.choice((0.0, 0.1, 2.0))
        name = rng.choice(("ann", "bob", "me", f"x{rng.randrange(3000)}"))
        info = PeerInfo(name, rng.randrange(40), rng.choice(list(Role)), "127.0.0.1", rng.randrange(1, 9))
        if rng.random() < 0.5:
            self._directory.learn(info, rng.random() < 0.5, self._now)
        else:
            self._directory.hear(Contributor(name, info.incarnation), self._now)
        if len(self._directory.everyone()) > 1024 or len(self._directory.others_called(name)) > 4:
            raise Misbehaved("more peers than there can be")


class TxtCase(_Case):
    """TXT records of mDNS, with and without the right values."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._own = [IPv4Interface("192.168.1.7/24")]
        me = PeerInfo("ann", 7, Role.TRAINER, "192.168.1.30", 5750, "abc")
        self._record = describe(me, ["192.168.1.30"], None, "home")

    def _decode(self) -> None:
        rng, record = self.rng, dict(self._record)
        for _ in range(rng.randrange(1, 4)):
            key = rng.choice(list(record))
            if rng.random() < 0.1:
                record.pop(key)
                continue
            old = record[key].encode()
            record[key] = (damage(old, rng) if rng.random() < 0.8 else rng.randbytes(200)).decode("utf-8", "replace")
        info = read_description(record, rng.randrange(70_000), None, "home", self._own)
        if info is not None:
            encode(Contributor(info.peer_id, info.incarnation), decode(encode(ME, _hello(info))).body)  # type: ignore[arg-type]


def _hello(info: PeerInfo) -> Any:
    from mdl.protocol.messages import Hello

    return Hello(info)


class TextCase(_Case):
    """Join codes, addresses, data specs, configuration: what people and files say in text."""

    errors = (ConfigError, DataError)

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._folder = _folder()
        code = new_join_code("home", bytes(range(19)))
        self._texts = {
            "code": code,
            "address": "[fe80::1]:80",
            "spec": "csv:/tmp/x?rate=50&window=100&columns=a,b",
            "set": "training.learning_rate=0.01",
            "toml": show_config(Config()),
        }

    def _decode(self) -> None:
        rng = self.rng
        kind = rng.choice(list(self._texts))
        text = damage(self._texts[kind].encode(), rng).decode("utf-8", "surrogateescape" if kind == "x" else "replace")
        match kind:
            case "code":
                parse_join_code(text)
            case "address":
                parse_address("".join(letter for letter in text if letter in "0123456789abcdef:[]."))
            case "spec":
                parse_spec(text)
            case "set":
                load_config(None, {}, [text])
            case "toml":
                path = self._folder / "mdl.toml"
                path.write_bytes(damage(self._texts["toml"].encode(), rng))
                load_config(path, {})


class FileCase(_Case):
    """Files that come back, or are handed over: caches, stories, plans, scenarios, metrics, tables, arrays."""

    errors = (DataError, ConfigError, *UNREADABLE)

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        rng, folder = self.rng, _folder()
        self._folder = folder
        cache = ModelCache(folder)
        history = History((Fork(0, 2, "a.1.1"),), ("a", "b"), (Counted(Contributor("a", 1), 3),))
        extra = {"history": msgspec.json.encode(history).decode()}
        cache.save(CachedModel(np.arange(8, dtype=np.float32), 4, "schema", "home", extra))
        case = MeshCase(rng.randrange(1000))
        for _ in range(20):
            case.step()
        # Two of them: what any machine lives through here, and a whole run with all that it takes to replay it.
        machine: Any = next(iter(case.mesh.nodes.values())).machine
        machine.story.save(folder / "story.jsonl")
        _, mesh = run_plan(draw_plan(seed % 50, 2, 1, "mild"), record=True)
        save_stories(mesh, folder)[0].rename(folder / "story-replayed.jsonl")
        save_scenarios([draw_scenario("dynamic", 3, seed % 50)], folder / "scenarios.jsonl")
        rounds = b"".join(msgspec.json.encode(summary) + b"\n" for summary in case.mesh.rounds)
        (folder / "metrics.jsonl").write_bytes(rounds or b"{}\n")
        BallotFile(folder / BALLOT).save(Ballot(65_536, (LineagePoint("a.1.1", 4),)))
        (folder / "plan.json").write_bytes(dump_plan(draw_plan(seed % 50, 4, 3, "hard")))
        rows = "".join(f"{time / 50},{time},{-time},{'ab'[time % 2]}\n" for time in range(60))
        (folder / "table.csv").write_text("time,x,y,label\n" + rows)
        (folder / "places.csv").write_text(
            "user,time,lat,lon\n"
            + "".join(f"u,{1_500_000_000 + 3600 * hour},48.{hour % 3},11.5\n" for hour in range(60))
        )
        windows = np.arange(40 * 6 * 2, dtype=np.float32).reshape(40, 6, 2)
        np.savez_compressed(folder / "windows.npz", x=windows, y=np.arange(40) % 2, subject=np.arange(40) // 4)
        self._files = {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.suffix in _READERS_OF}

    def _decode(self) -> None:
        name = self.rng.choice(list(self._files))
        path = self._folder / name
        path.write_bytes(self._damage(name))
        match name:
            case "model.safetensors":
                restore_state(ModelCache(self._folder), Origin("home", "schema"))
            case "story.jsonl" | "story-replayed.jsonl":
                recorded = load_story(path)
                for line in tell_entries(recorded, 50):
                    if not line.isprintable():
                        raise Misbehaved(f"a story tells {line!r}")
                self._replay(recorded)
            case "ballot":
                BallotFile(path).load()
            case "scenarios.jsonl":
                load_scenarios(path)
            case "metrics.jsonl":
                read_rounds(path)
            case "plan.json":
                load_plan(path.read_bytes())
            case "table.csv":
                read_csv(str(path), CsvOptions(window=10, step=10))
            case "places.csv":
                read_places(str(path), PlaceOptions())
            case "windows.npz":
                read_npz(path, ArrayOptions())

    def _damage(self, name: str) -> bytes:
        """Half of the time where the outermost format stays whole, so that what lies behind it is read too."""
        content, rng = self._files[name], self.rng
        if rng.random() < 0.5:
            return damage(content, rng)
        if name == "windows.npz":
            return _damage_member(content, rng)
        if name.startswith("story") and content:
            return _damage_words(content, rng)
        return damage(content, rng)

    @staticmethod
    def _replay(recorded: RecordedStory) -> None:
        trainer = recorded.start.trainer if recorded.start else None
        if trainer is not None and trainer.size <= _REPLAYED_VALUES:
            result = replay_story(recorded)
            if not result.describe().isprintable():
                raise Misbehaved(f"a replay says {result.describe()!r}")


def _damage_member(content: bytes, rng: random.Random) -> bytes:
    """An archive one of whose members is damaged and packed again, its checksum right."""
    written = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as given, zipfile.ZipFile(written, "w") as made:
        chosen = rng.choice(given.namelist())
        for member in given.namelist():
            array = given.read(member)
            # The header of an array is its first 128 bytes.
            head = damage(array[:128], rng) if rng.random() < 0.7 else array[:128]
            made.writestr(member, head + damage(array[128:], rng) if member == chosen else array)
    return written.getvalue()


def _damage_words(content: bytes, rng: random.Random) -> bytes:
    """Lines with some letters and digits exchanged for others, or lines exchanged, repeated and left out."""
    lines = content.splitlines(keepends=True)
    for _ in range(rng.choice((1, 1, 2, 5))):
        place = rng.randrange(len(lines))
        match rng.randrange(6):
            case 0:
                lines[place], lines[-1] = lines[-1], lines[place]
            case 1:
                lines.insert(place, lines[rng.randrange(len(lines))])
            case 2 if len(lines) > 1:
                del lines[place]
            case _:
                line = bytearray(lines[place])
                words = [number for number, byte in enumerate(line) if chr(byte).isalnum()]
                for number in rng.sample(words, min(2, len(words))):
                    line[number] = ord(rng.choice("0123456789abx" if chr(line[number]).isdigit() else "aeXz"))
                lines[place] = bytes(line)
    return b"".join(lines)


_READERS_OF = (".safetensors", ".jsonl", ".json", ".csv", ".npz", "")


class UpdateCase(_Case):
    """Updates and packed models, as a cloud and its learners take them from each other."""

    def __init__(self, seed: int) -> None:
        import torch

        from mdl.peers.colla.model.model_kinds import RecurrentKind, WindowKind
        from mdl.peers.colla.model.recurrent import build_recurrent, customize_classes

        super().__init__(seed)
        torch.manual_seed(seed)
        kinds: list[Any] = [RecurrentKind([f"place {number}" for number in range(6)], "4-8", "4-8")]
        kinds.append(WindowKind("lenet", "lenet", 2, 32, ("a", "b")))
        self._kinds = []
        for kind in kinds:
            pulled = kind.build_small(0)
            model = kind.build_small(1)
            if kind is kinds[0]:
                model = customize_classes(build_recurrent("4-8", 6, range(6), 1), [0, 2], torch.Generator())
            self._kinds.append((kind, pulled, kind.encode_update(model, pulled), kind.pack(pulled)))

    def _decode(self) -> None:
        rng = self.rng
        kind, pulled, update, packed = rng.choice(self._kinds)
        if rng.random() < 0.5:
            kind.apply_update(pulled, damage(update, rng))
        else:
            kind.unpack(damage(packed, rng))


_FOLDERS: list[Path] = []


def _folder() -> Path:
    """A folder of this case's own, in memory where that can be."""
    shm = Path("/dev/shm")
    _FOLDERS.append(Path(tempfile.mkdtemp(prefix="mdl-fuzz-", dir=shm if shm.is_dir() else None)))
    return _FOLDERS[-1]


def remove_folders() -> None:
    """All that the cases of this process have written."""
    while _FOLDERS:
        shutil.rmtree(_FOLDERS.pop(), ignore_errors=True)
