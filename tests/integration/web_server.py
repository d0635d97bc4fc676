"""A page about words that a test chooses, on a port of its own; and a reader of its events."""

import contextlib
import http.client
import json
import os
import socket
import threading
from unittest import mock

import msgspec

from mdl.peers.view.snapshot import CyclePart, Told, apply_patch
from mdl.peers.web.opening import TOKEN_VARIABLE, PageWanted, page_of
from mdl.peers.web.sources import POLICIES
from mdl.protocol.status_messages import DeviceRecord, HopSummary, MemberStatus, MeshStatus, RoundSummary
from mdl.protocol.vocabulary import Activity, PeerInfo, ResourceState, Role, Transfer
from mdl.transport.trust.keys import Mesh, new_join_code

CODE = new_join_code("home")
MESH = Mesh.from_code(CODE)
PATIENCE_S = 30.0


class Words:
    """A source that says what it was given; `say` has it say something else."""

    def __init__(self, told):
        self.now, self.is_watched, self.notify = told, False, lambda: None

    def told(self):
        return self.now

    def hurry(self, is_watched):
        self.is_watched = is_watched

    def say(self, **changes):
        self.now = msgspec.structs.replace(self.now, **changes)
        self.notify()


@contextlib.contextmanager
def served(words, lan=False, code="", metrics_port=None, mesh=MESH):
    given = mock.patch.dict(os.environ, {TOKEN_VARIABLE: "t" * 32})  # nothing is kept for this user
    with given, page_of(words, mesh, PageWanted(0, lan, metrics_port), code) as opened:
        words.notify = opened.notify
        yield opened


def port_of(opened):
    return int(opened.url.partition("/?")[0].rpartition(":")[2])


def ask(opened, path, method="GET", port=None, is_stranger=False, **headers):
    """(code, headers, body) of one request, as a program would send it: these headers, and with the token."""
    headers |= {} if is_stranger or "Authorization" in headers else {"Authorization": f"Bearer {opened.token}"}
    connection = http.client.HTTPConnection("127.0.0.1", port or port_of(opened), timeout=PATIENCE_S)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


class Reader:
    """Follows the events like a page does: `shown` is the snapshot with all changes."""

    def __init__(self, opened, path="/api/v1/events"):
        self.connection = http.client.HTTPConnection("127.0.0.1", port_of(opened), timeout=PATIENCE_S)
        self.connection.request("GET", path, headers={"Authorization": f"Bearer {opened.token}"})
        self.answer = self.connection.getresponse()
        self.code, self.shown, self.changed = self.answer.status, None, threading.Event()

    def next(self):
        """The next event but alive: (name, value)."""
        for _ in range(round(PATIENCE_S / 2)):
            name = self.answer.readline().decode().partition(": ")[2].strip()
            value = json.loads(self.answer.readline().decode().partition(": ")[2])
            assert self.answer.readline() == b"\n"
            if name == "alive":
                continue
            self.shown = value if name == "snapshot" else apply_patch(self.shown, value)
            return name, value
        raise TimeoutError("nothing but alive was heard")

    def close(self):
        # Not read to its end, which never comes.
        with contextlib.suppress(OSError):
            if self.connection.sock:
                self.connection.sock.shutdown(socket.SHUT_RDWR)
        self.answer.close()
        self.connection.close()


def _member(name, number, activity, **given):
    resources = ResourceState(
        (1 + number % 7) << 30, (number * 13) % 90 + 3.0,
        None if number % 3 == 0 else float(95 - (number * 17) % 90), number % 4 == 1, number % 5 == 2,
        temperature_c=35.0 + number % 30, energy_j=40.0 * number, round_energy_j=1.0 + number % 3,
        energy_from="modelled",
    )  # fmt: skip
    links = {"link_mb_s": 3.0 + number % 11, "merge_mb_s": 80.0, "loss": 0.4 + number / 50}
    return MemberStatus(name, 1, given.pop("alive", True), activity, 41, given.pop("heard_s_ago", 0.2),
                        resources=resources, **links, **given)  # fmt: skip


def a_mesh(count=12, rounds=40, names=None):
    """Words about a mesh in the middle of a round, with one silent, one refused and one paused device."""
    names = names or [f"device-{number:02d}" for number in range(1, count + 1)]
    doing = [Activity.HOLDING, Activity.RECEIVING, Activity.TRAINING, Activity.SENT]
    members = [_member(name, number, doing[number % 4], theta=float(number % 3)) for number, name in enumerate(names)]
    change, elapsed_s = msgspec.structs.replace, 2.1
    members[1] = change(members[1], transfer=Transfer(names[0], 300, 1000))
    members[-1] = change(members[-1], alive=False, heard_s_ago=42.0)
    members[-2] = change(members[-2], problem="its model is alexnet (3 classes), the mesh's is lenet (6 classes)")
    members[-3] = change(members[-3], problem="paused: on battery, 12 %")
    if count > 8:
        members[-4] = change(members[-4], problem="revoked: by device-01")
        members[-5] = change(members[-5], problem="quarantined: its work points away from everybody else's")
    devices = tuple(
        DeviceRecord(name, 0.8 + 0.07 * (number % 9), 5.0, 80.0, loss=0.5, accuracy=0.8, busy=((0.2, 0.5),))
        for number, name in enumerate(names)
    )
    why = "dqn: {0} sends: its Q is 0.95 (next 0.91); {1} receives"
    hops = tuple(
        HopSummary(number, names[2 * number], names[2 * number + 1], "merged" if number else "ordered",
                   1.0 + number * 0.2, 1.3 + number * 0.2 if number else None,
                   why.format(names[2 * number], names[2 * number + 1]), 4_000_000, 0.2)
        for number in range(len(names) // 2)
    )  # fmt: skip
    so_far = tuple(
        change(hop, outcome="ordered", decided_s=None) if (hop.decided_s or 9.9) > elapsed_s else hop
        for hop in hops
        if hop.ordered_s <= elapsed_s
    )
    status = MeshStatus(
        9, 42, 200, f"aggregating, waits for {names[2]}", "dqn", tuple(members), so_far, agent=names[0],
        devices=devices, elapsed_s=elapsed_s, cuts=(f"{names[0]} and {names[3]} do not reach each other",),
    )  # fmt: skip
    lines = [_line(number, names, devices, hops) for number in range(42 - rounds, 42)]
    peers = {"boss": PeerInfo("boss", 1, Role.AGENT, "10.0.0.1", 1)}
    cycles = {
        1: CyclePart(seconds=4.0),
        2: CyclePart({"0": tuple(names[:2]), "1": tuple(names[2:4])}, dict.fromkeys(names[:4], 0.81), (), 6.5),
    }
    classes = ("sit", "walk", "run", "upstairs", "cycle", "lie down")
    return Told(*("home", "test", status, 0.1, lines, peers, cycles, 0.71, 0.93), policies=POLICIES, classes=classes)


def _line(number, names, devices, hops):
    merged = tuple(msgspec.structs.replace(hop, outcome="merged", decided_s=(hop.decided_s or 1.3)) for hop in hops)
    climb = 1 - 0.6 * 0.93**number
    told = tuple(
        msgspec.structs.replace(each, loss=2.1 * 0.96**number + at * 0.01, accuracy=min(1.0, climb - at * 0.004))
        for at, each in enumerate(devices)
    )
    seconds = {"train": 1.2 + number % 3 * 0.1, "aggregate": 0.7, "broadcast": 0.4, "apply": 0.05}
    return RoundSummary(
        number, float(len(names)), tuple(names), tuple((hop.sender, hop.receiver) for hop in hops),
        seconds | {"total": sum(seconds.values())}, 88_000_000, 2.1 * 0.96**number, climb, climb - 0.03,
        schedule=merged, devices=told, lost=(names[-1],) if number % 11 == 0 else (),
        confusion=tuple(tuple(90 if a == b else (3 * a + b) % 7 for b in range(6)) for a in range(6)),
    )  # fmt: skip
