"""Bugs planted in handlers cost the peer whose message met them its place for a while, and nobody their process."""

import logging
import queue
import time

import numpy as np
import pytest

from mdl.peers.cloud.machine import CloudSettings
from mdl.peers.colla.machine import Cloud, CloudState
from mdl.protocol.cloud_messages import LessonCurrent, LessonWanted, UpdateOffered
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import CycleTaught, Finish, PeerFound, Received, Send, StopRequested, StoreUpdate, WorkFailed
from mdl.protocol.messages import Hello, PeersKnown
from mdl.protocol.round_messages import ModelMessage, ModelWanted
from mdl.protocol.status_messages import StatusWanted
from mdl.protocol.vocabulary import Packed, PeerInfo, Role
from mdl.transport.discovery.directory import Directory
from mdl.transport.limits import FIRST_S, MOST_REBUILDS
from mdl.transport.links.introducer import Introducer, RosterTalk
from mdl.transport.links.mesh_links import Links
from mdl.transport.runtime import Renewed, Runtime
from mdl.transport.trust.keys import new_join_code
from mdl.transport.wire.incoming import IncomingTransfers
from tests.integration import product
from tests.integration.conftest import device_of, signed
from tests.integration.test_links import know_each_other, refuses, say, send, settled
from tests.integration.test_runtime import PATIENCE_S, Nodes, Scripted

pytestmark = pytest.mark.alone


class Planted(Exception):
    """A bug that nobody knows."""


def about(argument):
    """Whom an argument of a handler names."""
    return getattr(argument, "peer_id", argument)


def plant(monkeypatch, kind, name, whose="c"):
    """Let this method raise where its first argument names `whose`: after its work, so that its state has changed."""
    method = getattr(kind, name)

    def broken(self, *given):
        done = method(self, *given)
        if about(given[0]) == whose:
            raise Planted(name)
        return done

    monkeypatch.setattr(kind, name, broken)


WORDS = {
    "who else is known": (Links, "_on_peers", PeersKnown(())),
    "a message that counts": (Directory, "hear", StatusWanted(1)),
    "the roster": (RosterTalk, "hear", StatusWanted(1)),
    "a transfer": (IncomingTransfers, "on_offered", ModelMessage(1, b"d")),
}


@pytest.mark.parametrize("where", WORDS)
def test_a_bug_in_the_links_costs_the_peer_alone_whose_message_met_it(mesh, keys, monkeypatch, caplog, where):
    kind, name, word = WORDS[where]
    for peer_id in "abc":
        mesh.add(peer_id, keys, join=["a"] if peer_id != "a" else [])
    assert know_each_other(mesh, *"abc")
    assert settled(mesh, *"abc")
    plant(monkeypatch, kind, name)
    caplog.set_level(logging.ERROR)
    send(mesh, "c", "a", word, np.ones(8, np.float32) if isinstance(word, ModelMessage) else None)
    links = mesh.links["a"]
    assert mesh.until(lambda: links.counts.unheard == ("c",))
    monkeypatch.undo()
    mesh.events["a"].clear()
    send(mesh, "c", "a", StatusWanted(7))
    send(mesh, "b", "a", StatusWanted(8))
    assert mesh.until(lambda: mesh.of("a", Received))
    mesh.until(lambda: False, 0.5)
    assert {event.sender.peer_id for event in mesh.of("a", Received)} == {"b"}
    assert "Planted" in caplog.text, "it is told with its traceback"
    assert sum("this one goes on" in line.getMessage() for line in caplog.records) <= 3
    mesh.ahead_s += FIRST_S + 1.0
    mesh.events["a"].clear()
    assert mesh.until(lambda: send(mesh, "c", "a", StatusWanted(9)) or len(mesh.of("a", Received)) > 0)
    assert links.counts.unheard == ()


def test_a_bug_that_an_introduction_meets_costs_nobody_a_place(mesh, keys, monkeypatch):
    """At the door whoever has the code can say it again in another one's name."""
    for peer_id in "ab":
        mesh.add(peer_id, keys, join=["a"] if peer_id != "a" else [])
    assert know_each_other(mesh, *"ab")
    assert settled(mesh, *"ab")
    links, plain = mesh.links["a"], Introducer.nearest
    monkeypatch.setattr(Links, "_on_hello", lambda *given, **named: 1 / 0)
    hello = Hello(signed(keys, PeerInfo("b", 1, Role.TRAINER, "127.0.0.1", 9)))
    assert say(mesh, keys, "a", Contributor("b", 1), [hello], until=lambda: links.counts.bugs > 0, at_door=True)
    assert links.counts.unheard == ()
    monkeypatch.undo()
    send(mesh, "b", "a", StatusWanted(3))
    assert mesh.until(lambda: mesh.of("a", Received))
    assert plain is Introducer.nearest


@pytest.fixture
def nodes(keys):
    nodes = Nodes(keys)
    yield nodes
    nodes.close()


def renewing(built, make):
    """Builds machines anew, and tells which."""

    def renew(links):
        built.append(make())
        return Renewed(built[-1], links.begin_again(len(built) + 1))

    return renew


def failing(event):
    if isinstance(event, Received) and event.message == StatusWanted(13):
        raise Planted("handle")
    return []


def asking(*numbers):
    """Sends these questions to a, one after the other, as soon as that is known."""
    return lambda event: (
        [Send("a", StatusWanted(number)) for number in numbers]
        if isinstance(event, PeerFound) and event.info.peer_id == "a"
        else []
    )


def test_a_machine_that_met_a_bug_begins_again_with_whom_it_knows_and_its_sender_is_out(nodes, tmp_path):
    built, former = [], Scripted(failing)
    a = nodes.start("a", former, renew=renewing(built, Scripted), story_path=tmp_path / "story-a.jsonl")
    good = Scripted()
    b = nodes.start("b", good, join=a)
    former.wait_for(PeerFound)
    nodes.start("c", Scripted(asking(13, 14)), join=a)
    deadline = time.monotonic() + PATIENCE_S
    while not built and time.monotonic() < deadline:
        time.sleep(0.01)
    assert built, "it was not built once more"
    built[0].wait_for(PeerFound)
    assert "b" in {event.info.peer_id for event in built[0].of(PeerFound)}
    b.with_links(lambda links, now: links.send("a", StatusWanted(2), None, now))
    built[0].wait_for(Received)
    assert {event.sender.peer_id for event in built[0].of(Received)} == {"b"}
    found = good.wait_for(PeerFound, 2)
    assert found[-1].info.incarnation == 2 or any(e.info.incarnation == 2 for e in good.wait_for(PeerFound, 3))
    assert a.links.counts.bugs == 1
    assert a.links.counts.unheard == ("c",)
    assert '"since_round":13' in (tmp_path / "story-a.bug.jsonl").read_text(), "the story ends with what it met"


def test_a_bug_in_work_that_a_message_asked_for_is_its_senders(nodes):
    built, done = [], queue.SimpleQueue()
    update = UpdateOffered("home", "", 1, b"d")

    def store(effect):
        done.put(effect)
        raise Planted("store")

    def react(event):
        return [StoreUpdate(event.sender, update, Packed(b"x"))] if isinstance(event, Received) else []

    a = nodes.start("a", Scripted(react), {StoreUpdate: store}, renew=renewing(built, Scripted))
    nodes.start("c", Scripted(asking(1)), join=a)
    done.get(timeout=PATIENCE_S)
    deadline = time.monotonic() + PATIENCE_S
    while not built and time.monotonic() < deadline:
        time.sleep(0.01)
    assert built
    assert a.links.counts.unheard == ("c",)
    a.stop()
    assert nodes.outcome(a) == Finish()


def test_what_the_former_machine_asked_for_does_not_reach_the_next_one(nodes):
    """Its training ends for nobody: by now the process is another start for all others."""
    built, begun, go = [], queue.SimpleQueue(), queue.SimpleQueue()

    def store(effect):
        begun.put(effect)
        go.get(timeout=PATIENCE_S)
        return WorkFailed("StoreUpdate", "of the former machine")

    def react(event):
        if isinstance(event, PeerFound):
            return [StoreUpdate(Contributor("x", 1), UpdateOffered("home", "", 1, b"d"), Packed(b"x"))]
        return failing(event)

    a = nodes.start("a", Scripted(react), {StoreUpdate: store}, renew=renewing(built, Scripted))
    nodes.start("c", Scripted(asking(13)), join=a)
    begun.get(timeout=PATIENCE_S)
    deadline = time.monotonic() + PATIENCE_S
    while not built and time.monotonic() < deadline:
        time.sleep(0.01)
    go.put(None)
    a.stop()
    assert nodes.outcome(a) == Finish()
    assert built[0].of(WorkFailed) == []
    assert len(built[0].of(StopRequested)) == 1


@pytest.mark.parametrize("renews", [False, True])
def test_a_bug_of_its_own_ends_the_process_as_ever(nodes, renews):
    def react(event):
        if isinstance(event, WorkFailed):
            raise Planted("its own")
        return []

    a = nodes.start("a", Scripted(react), renew=renewing([], Scripted) if renews else None)
    a.post(WorkFailed("x", "y"))
    assert isinstance(nodes.outcome(a), Planted)


def test_a_node_whose_rebuilt_machine_fails_again_and_again_stops_with_the_bug(nodes):
    """Whoever speaks: the cause is in what it is rebuilt from."""
    built = []

    def react(event):
        if isinstance(event, Received):
            raise Planted("in any case")
        return []

    a = nodes.start("a", Scripted(react), renew=renewing(built, lambda: Scripted(react)))
    now = a._clock()
    for _ in range(MOST_REBUILDS):
        assert a.links.barrier.may_rebuild(now)
    nodes.start("c", Scripted(asking(1)), join=a)
    assert isinstance(nodes.outcome(a), Planted)
    assert built == []


def test_a_cloud_that_met_a_bug_teaches_the_others(monkeypatch, keys):
    from tests.integration.test_hub import Star

    star = Star()
    try:
        hub = star.add_hub(keys)
        for name in ("ann", "bob"):
            star.add_spoke(name, keys, hub.port, device=device_of(name))
        taught = CycleTaught(1, {"-1": Packed(b"m")}, {"-1": Packed(b"p")}, {})
        make = lambda: Cloud("hash", "model", CloudSettings(), CloudState(taught, {}), 0.0)  # noqa: E731
        machines = [make()]

        def renew(links):
            machines.append(make())
            return Renewed(machines[-1])

        runtime = Runtime(machines[0], hub, {}, renew=renew)
        hear = Cloud._find_fault

        def broken(self, message):
            problem = hear(self, message)
            if message.pupil == "evil":
                raise Planted("cloud")
            return problem

        monkeypatch.setattr(Cloud, "_find_fault", broken)
        monkeypatch.setattr(star, "ends", {"ann": star.ends["ann"], "bob": star.ends["bob"]})

        def turn():
            now = time.monotonic()
            for event in hub.receive(now):
                runtime._step(event, now)

        star.send("bob", "cloud", LessonWanted("evil", "hash", "model", 1))
        assert star.until(lambda: turn() or len(machines) == 2)
        star.send("bob", "cloud", LessonWanted("good", "hash", "model", 1))
        star.send("ann", "cloud", LessonWanted("good", "hash", "model", 1))
        assert star.until(lambda: turn() or star.received("ann", LessonCurrent))
        assert not star.received("bob", LessonCurrent)
        assert hub.counts.unheard == ("bob",)
        hub.close()
    finally:
        for label in list(star.ends):
            star.kill(label)


def test_messages_of_those_who_are_out_are_not_refused_but_unheard(mesh, keys):
    for peer_id in "ab":
        mesh.add(peer_id, keys, join=["a"] if peer_id != "a" else [])
    assert know_each_other(mesh, *"ab")
    assert settled(mesh, *"ab")
    none = refuses(mesh, "a", 0)
    mesh.links["a"].put_out("b", mesh.now())
    send(mesh, "b", "a", ModelWanted(1))
    mesh.until(lambda: False, 0.5)
    assert none()
    assert mesh.of("a", Received) == []


# In one of three processes: what p3 says meets a bug once, after the handler has done its work.
BROKEN = """
import mdl.transport.limits
from mdl.peers.roles.peer import Peer

mdl.transport.limits.FIRST_S = 1.0
hear, met = Peer._hear, []


def broken(self, event, now):
    effects = hear(self, event, now)
    if event.sender.peer_id == "p3" and len(met) < 1 and self.trainer.round_id >= FROM:
        met.append(event)
        raise ZeroDivisionError("planted")
    return effects


Peer._hear = broken
if __name__ == "__main__":
    from mdl.__main__ import main

    main()
"""


@pytest.mark.parametrize("from_round", [0, 1])
def test_a_process_that_met_a_bug_goes_on_as_another_start_of_itself_and_ends_with_the_mesh(tmp_path, from_round):
    home = product.Home(tmp_path / "home", tmp_path.parent / "cache")
    (home.folder / "broken.py").write_text(BROKEN.replace("FROM", str(from_round)))
    peer = ("peer", "--code", new_join_code("home"), "--loopback", "--data", product.SMALL, "--json")
    peer += ("--set", "round.rounds=4", "--set", "round.min_peers=3")  # they wait for it: two would be done in 0.5 s
    try:
        running = [home.start_python(home.folder / "broken.py", *peer, "--name", "p1", "--shard", "1/3")]
        running += [home.start(*peer, "--name", f"p{at}", "--shard", f"{at}/3") for at in (2, 3)]
        codes = [command.end() for command in running]
        told = [command.told for command in running]
        assert codes == [0, 0, 0], told
        assert "a message of p3 met a bug here" in told[0]
        assert "ZeroDivisionError: planted" in told[0]
        assert [command.result()["round_id"] for command in running] == [4, 4, 4]
    finally:
        home.close()
