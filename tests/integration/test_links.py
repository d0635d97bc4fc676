"""Two and three nodes on loopback: what gets through, what does not, and what it costs."""

import contextlib
import os
import socket
import threading
import time

import msgspec
import numpy as np
import psutil
import pytest
import zmq

from mdl.bounds import MAX_MEMBERS
from mdl.descriptors import DescriptorShare
from mdl.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import NameTaken, PeerFound, PeerRevoked, Received
from mdl.protocol.messages import Hello, PeersKnown
from mdl.protocol.round_messages import ModelMessage, ModelWanted
from mdl.protocol.statements import Proof
from mdl.protocol.status_messages import StatusWanted
from mdl.protocol.vocabulary import PeerInfo, Role
from mdl.transport.discovery.directory import SILENT_S, Address
from mdl.transport.links.mesh_links import Links
from mdl.transport.links.outbox import KNOCK_S
from mdl.transport.links.sockets import Curve, open_dealer
from mdl.transport.links.standing import Stated
from mdl.transport.trust.keys import DeviceKey, MeshKeys, code_hash, founder_mark, new_join_code, where_claim
from mdl.transport.trust.membership import Membership
from mdl.transport.trust.roster import MAX_NAMES
from mdl.transport.wire.bulk import Outgoing
from mdl.transport.wire.codec import CHUNK_BYTES, MAX_FRAME_BYTES, RosterTold, TransferOffered, encode
from mdl.transport.wire.places import MAX_TRIES
from tests.fuzz.hostile import forced
from tests.integration.conftest import device_of, signed

pytestmark = pytest.mark.alone

VALUES = np.random.default_rng(1).standard_normal(5 * 1024 * 1024).astype(np.float32)  # 20 MiB
SHORT_S, SAID_S = 0.7, 2.0


def never():
    return False


@pytest.fixture(scope="module")
def founded_keys():
    """Of a mesh that the device "a" has made."""
    return MeshKeys.from_code(new_join_code("home", bytes(range(19)), founder_mark(device_of("a").public)))


@pytest.fixture
def founded(founded_keys):
    """The keys, and what the founder is in its mesh."""
    owner = Membership(founded_keys, device_of("a"))
    owner.roster.add(owner.found())
    return founded_keys, owner


def send(mesh, sender, receiver, message, values=None):
    mesh.links[sender].send(receiver, message, values, time.monotonic())


def know_each_other(mesh, *peer_ids):
    return mesh.until(lambda: all(len(mesh.of(p, PeerFound)) >= len(peer_ids) - 1 for p in peer_ids))


def settled(mesh, *peer_ids):
    """They have compared what they know of the mesh: their words count."""
    pairs = [(mesh.links[one].standing, other) for one in peer_ids for other in peer_ids if one != other]
    return mesh.until(lambda: all(standing.is_settled(other, mesh.now()) for standing, other in pairs))


def test_a_model_arrives_bit_for_bit_while_small_messages_pass_it_both_ways(mesh, keys):
    mesh.add("a", keys)
    mesh.add("b", keys, join=["a"])
    assert know_each_other(mesh, "a", "b")
    send(mesh, "a", "b", ModelMessage(1, b"d"), VALUES)
    send(mesh, "a", "b", ModelMessage(1, b"d"), VALUES)  # asked twice, sent once
    for number in range(50):
        send(mesh, "a", "b", StatusWanted(number))
        send(mesh, "b", "a", ModelWanted(number))
    assert mesh.until(lambda: any(event.values is not None for event in mesh.of("b", Received)))
    received = mesh.of("b", Received)
    assert [e.message.since_round for e in received if e.values is None] == list(range(50))
    assert received[-1].values is not None, "all small messages overtook the model"
    assert received[-1].values.tobytes() == VALUES.tobytes()
    assert received[-1].sender == Contributor("a", 1)
    assert len(mesh.of("a", Received)) == 50
    assert not mesh.links["a"].is_sending() or mesh.until(lambda: not mesh.links["a"].is_sending())
    assert VALUES.nbytes < mesh.links["a"].counts.sent_bytes < 1.01 * VALUES.nbytes
    assert VALUES.nbytes < mesh.links["b"].counts.received_bytes < 1.01 * VALUES.nbytes


def test_three_nodes_joined_in_a_line_all_know_one_another(mesh, keys):
    mesh.add("a", keys)
    mesh.add("b", keys, join=["a"])
    mesh.add("c", keys, join=["b"])
    assert know_each_other(mesh, "a", "b", "c")
    send(mesh, "a", "c", StatusWanted(1))
    send(mesh, "c", "a", StatusWanted(2))
    assert mesh.until(lambda: mesh.of("a", Received) and mesh.of("c", Received))


def test_two_pairs_become_one_mesh_when_one_node_joins_across(mesh, keys):
    mesh.add("a", keys)
    mesh.add("b", keys, join=["a"])
    mesh.add("c", keys)
    mesh.add("d", keys, join=["c"])
    assert mesh.until(lambda: all(mesh.of(p, PeerFound) for p in "abcd"))
    mesh.add("e", keys, join=["a", "d"])
    assert know_each_other(mesh, "a", "b", "c", "d", "e")


def test_a_node_that_greets_an_address_before_anyone_listens_there_joins_later(mesh, keys):
    port = mesh.add("late", keys).me.port
    mesh.add("early", keys, join=["late"])
    mesh.kill("late")
    mesh.until(lambda: False, SHORT_S)
    mesh.add("late", keys, port=port)
    assert know_each_other(mesh, "early", "late")


def test_another_code_neither_gets_in_nor_is_heard(mesh, keys, other_keys):
    mesh.add("a", keys)
    mesh.add("stranger", other_keys, join=["a"])
    with pytest.raises(RemoteProtocolError, match="has not signed that"):
        mesh.links["stranger"].learn(mesh.introduced("a"))
    ports = mesh.links["a"].me.port, mesh.links["a"].doors.link_port
    mesh.links["stranger"].learn(
        signed(other_keys, PeerInfo("a", 1, Role.TRAINER, "127.0.0.1", ports[0]), link_port=ports[1])
    )
    send(mesh, "stranger", "a", StatusWanted())
    mesh.until(lambda: bool(mesh.events["a"]), SHORT_S)
    assert mesh.events["a"] == []
    assert mesh.links["a"].counts.received_bytes == 0


@pytest.mark.parametrize("where", ["door", "links"])
def test_the_servers_public_key_alone_lets_nobody_in(mesh, keys, where):
    links = mesh.add("a", keys)
    server, port = (
        (keys.server_public, links.me.port) if where == "door" else (device_of("a").curve_public, links.doors.link_port)
    )
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        public, secret = zmq.curve_keypair()
        dealer.curve_serverkey, dealer.curve_publickey, dealer.curve_secretkey = server, public, secret
        dealer.connect(f"tcp://127.0.0.1:{port}")
        dealer.send(encode(Contributor("x", 1), StatusWanted()))
        mesh.until(lambda: bool(mesh.events["a"]), SHORT_S)
    assert links.counts.received_bytes == 0


def say(mesh, keys, receiver, speaker, bodies, *, until, at_door=False, device=None):
    """Somebody says this in the name of `speaker`, by the keys of this device; whether that becomes so in time."""
    links, own = mesh.links[receiver], device or device_of(speaker.peer_id)
    server = device_of(receiver).curve_public
    curve = Curve.of_door(keys) if at_door else Curve(server, own.curve_public, own.curve_secret)
    context = zmq.Context()
    port = links.me.port if at_door else links.doors.link_port
    dealer = open_dealer(context, curve, Address("127.0.0.1", port), bulk=False)
    for body in bodies:
        dealer.send(encode(speaker, body))
    is_so = mesh.until(until, SAID_S)
    context.destroy(linger=0)
    return is_so


def refuses(mesh, peer_id, many):
    """A claim: that so many messages more were refused."""
    before = mesh.links[peer_id].counts.refused
    return lambda: mesh.links[peer_id].counts.refused - before == many


def test_who_has_the_code_alone_speaks_for_nobody(mesh, keys):
    """At the door nothing but a Hello is heard, and one that the device has not signed changes nothing."""
    mesh.add("a", keys)
    mesh.add("b", keys, join=["a"])
    assert know_each_other(mesh, "a", "b")
    mesh.events["a"].clear()
    known = mesh.links["a"].directory.everyone()
    thief = DeviceKey.of(b"thief".ljust(32, b"."))
    moved = PeerInfo("b", 2, Role.TRAINER, "127.0.0.1", 9)
    own = mesh.introduced("b")
    forged = (
        Hello(moved),
        Hello(signed(keys, moved, thief)),
        Hello(msgspec.structs.replace(own, host="127.0.0.2")),
        Hello(msgspec.structs.replace(own, port=9)),
        Hello(msgspec.structs.replace(own, incarnation=2)),
        Hello(msgspec.structs.replace(moved, proof=own.proof)),
    )
    for hello in forged:
        speaker, refused = Contributor("b", hello.me.incarnation), refuses(mesh, "a", 1)
        assert say(mesh, keys, "a", speaker, [hello], until=refused, at_door=True), hello
    words = (StatusWanted(), PeersKnown((signed(keys, moved),)), TransferOffered(1, 4, ModelMessage(1, b"")))
    assert say(mesh, keys, "a", Contributor("b", 1), words, until=refuses(mesh, "a", len(words)), at_door=True)
    assert mesh.events["a"] == []
    assert mesh.links["a"].directory.everyone() == known
    mesh.links["b"].send("a", StatusWanted(7), None, time.monotonic())
    assert mesh.until(lambda: mesh.of("a", Received)), "the one that is meant is heard as before"


@pytest.mark.parametrize("host", ["1.2", ":::", "127.0.0.256", "::1::"])
def test_an_introduction_with_an_address_that_is_none_is_refused_and_goes_no_further(mesh, keys, host):
    """One signed Hello at one door ended every process of the mesh: who heard it passed it on."""
    for peer_id in "abc":
        mesh.add(peer_id, keys, join=["a"] if peer_id != "a" else [])
    assert know_each_other(mesh, *"abc")
    at = PeerInfo("x", 1, Role.TRAINER, "127.0.0.1", 9)
    own = device_of("x")
    proof = forced(Proof(Membership(keys, own).enrol("x"), 9, (at.host,), 1), {"hosts": (at.host, host)})
    proof = forced(proof, {"signature": own.signing.sign(where_claim(keys.mesh_id, at, proof))})
    hello = Hello(msgspec.structs.replace(at, proof=proof))
    assert say(mesh, keys, "a", Contributor("x", 1), [hello], until=refuses(mesh, "a", 1), at_door=True)
    assert not mesh.until(lambda: any(mesh.links[each].directory.get("x") for each in "abc"), SHORT_S)
    send(mesh, "b", "c", StatusWanted(1))
    assert mesh.until(lambda: mesh.of("c", Received))


def test_a_member_speaks_for_itself_alone(mesh, keys):
    mesh.add("a", keys)
    mesh.add("b", keys, join=["a"])
    mesh.add("c", keys, join=["a"])
    assert know_each_other(mesh, "a", "b", "c")
    mesh.events["a"].clear()
    words = (StatusWanted(), Hello(mesh.introduced("c")), PeersKnown(()))
    speaker, refused = Contributor("b", 1), refuses(mesh, "a", len(words))
    assert say(mesh, keys, "a", speaker, words, until=refused, device=device_of("c"))
    assert mesh.events["a"] == []
    assert say(mesh, keys, "a", Contributor("c", 1), [StatusWanted(3)], until=lambda: mesh.of("a", Received))
    assert mesh.of("a", Received) == [Received(Contributor("c", 1), StatusWanted(3))]


def test_a_device_that_nobody_introduced_is_not_let_in_where_words_are_taken(mesh, keys):
    mesh.add("a", keys)
    heard = lambda: mesh.links["a"].counts.received_bytes > 0  # noqa: E731
    assert not say(mesh, keys, "a", Contributor("x", 1), [StatusWanted()], until=heard)


def test_words_count_only_once_all_that_the_speaker_knows_of_the_mesh_has_come(mesh, keys):
    mesh.add("a", keys)
    mesh.links["a"].learn(signed(keys, PeerInfo("x", 1, Role.TRAINER, "127.0.0.1", 9)))
    roster = Membership(keys, device_of("x"))
    roster.join("x")
    all_of_it = RosterTold(roster.roster.digest, roster.roster.statements(), True)
    received = lambda: mesh.of("a", Received)  # noqa: E731
    assert not say(mesh, keys, "a", Contributor("x", 1), [StatusWanted(1)], until=received)
    assert mesh.links["a"].counts.received_bytes > 0
    assert say(mesh, keys, "a", Contributor("x", 1), [all_of_it, StatusWanted(2)], until=received)
    assert [event.message.since_round for event in mesh.of("a", Received)] == [2]


def test_a_device_that_is_revoked_is_gone_everywhere_and_heard_nowhere(mesh, founded):
    keys, owner = founded
    mesh.add_start("a", PeerInfo("a", 1, Role.TRAINER, "", 0), keys, membership=owner, max_values=1)
    mesh.add("b", keys, join=["a"])
    mesh.add("c", keys, join=["a"])
    assert know_each_other(mesh, "a", "b", "c")
    mesh.events["a"] += mesh.links["a"].state(Stated(owner.revoke(device_of("c").public, 5, "lost")))
    assert mesh.until(lambda: mesh.of("b", PeerRevoked) and mesh.of("c", PeerRevoked))
    assert [{event.peer_id for event in mesh.of(peer_id, PeerRevoked)} for peer_id in "abc"] == [{"c"}] * 3
    for receiver in "ab":
        assert mesh.links[receiver].directory.get("c") is None
        mesh.events[receiver].clear()
        say(mesh, keys, receiver, Contributor("c", 1), [StatusWanted()], until=never)
        refused = refuses(mesh, receiver, 1)
        hello = Hello(mesh.introduced("c"))
        assert say(mesh, keys, receiver, Contributor("c", 1), [hello], until=refused, at_door=True)
        assert mesh.events[receiver] == []
        assert mesh.links[receiver].directory.get("c") is None


def test_who_joins_through_a_member_that_is_out_follows_nothing_of_it(mesh, founded):
    """The one that is out knows it, and the newcomer hears it from whoever else is there."""
    keys, owner = founded
    mesh.add_start("a", PeerInfo("a", 1, Role.TRAINER, "", 0), keys, membership=owner, max_values=1)
    mesh.add("c", keys, join=["a"])
    assert know_each_other(mesh, "a", "c")
    mesh.events["a"] += mesh.links["a"].state(Stated(owner.revoke(device_of("c").public, 5, "")))
    assert mesh.until(lambda: mesh.of("c", PeerRevoked))
    mesh.add("d", keys, join=["a"])
    assert mesh.until(lambda: mesh.links["d"].standing.is_settled("a", time.monotonic()))
    with pytest.raises(RemoteProtocolError, match="was revoked"):
        mesh.links["d"].learn(mesh.introduced("c"))


def test_who_is_away_when_it_is_called_is_called_again(mesh, keys):
    """Nobody else tells it who that is: of two peers that greet a third only the later one hears of the earlier."""
    mesh.add("a", keys)
    mesh.add("b", keys)
    mesh.asleep = {"b"}
    mesh.links["a"].learn(mesh.introduced("b"))
    mesh.until(never, SHORT_S)
    mesh.ahead_s += KNOCK_S
    mesh.until(never, SHORT_S)
    mesh.asleep = set()
    mesh.ahead_s += KNOCK_S
    assert mesh.until(lambda: mesh.of("b", PeerFound) and mesh.links["a"].directory.is_heard("b", mesh.now()))


def test_a_device_that_is_revoked_while_another_has_its_name_is_sent_nothing_more(mesh, founded):
    """In another part of the mesh that one came first."""
    keys, owner = founded
    mesh.add_start("a", PeerInfo("a", 1, Role.TRAINER, "", 0), keys, membership=owner, max_values=1)
    mesh.add("c", keys, join=["a"])
    assert know_each_other(mesh, "a", "c")
    other = Membership(keys, DeviceKey.of(b"other".ljust(32, b".")))
    mesh.links["a"].state(Stated((other.enrol("c"),)))
    mesh.events["a"] += mesh.links["a"].state(Stated(owner.revoke(device_of("c").public, 5, "")))
    assert [event.peer_id for event in mesh.of("a", PeerRevoked)] == ["c"]
    assert mesh.links["a"].directory.get("c") is None
    assert mesh.links["a"]._outbox.linked() == []


def test_another_code_reaches_every_member_and_the_old_one_opens_nothing(mesh, founded):
    keys, owner = founded
    mesh.add_start("a", PeerInfo("a", 1, Role.TRAINER, "", 0), keys, membership=owner, max_values=1)
    mesh.add("b", keys, join=["a"])
    assert know_each_other(mesh, "a", "b")
    code = new_join_code("home", bytes(range(1, 20)), keys.mark)
    new = MeshKeys.from_code(code)
    mesh.links["a"].state(Stated((owner.change_code(code_hash(code), everybody=True),), code, new))
    assert mesh.until(lambda: mesh.links["b"].introducer.door.server == new.server_public)
    mesh.add("late", new, join=["b"])
    assert mesh.until(lambda: all(mesh.links[other].directory.is_heard("late", time.monotonic()) for other in "ab"))
    mesh.add("stranger", keys)
    with pytest.raises(RemoteProtocolError, match="another join code"):
        mesh.links["b"].learn(mesh.introduced("stranger"))
    send(mesh, "a", "b", StatusWanted(5))
    assert mesh.until(lambda: mesh.of("b", Received)), "who was there stays"


def test_raw_and_keyless_clients_are_ignored_and_memory_stays_flat(mesh, keys):
    port = mesh.add("a", keys).me.port
    mesh.turn()
    before = psutil.Process().memory_info().rss
    flood = os.urandom(1 << 16)
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer, socket.socket() as raw:
        dealer.linger, dealer.sndhwm = 0, 8
        dealer.connect(f"tcp://127.0.0.1:{port}")
        dealer.send(encode(Contributor("x", 1), TransferOffered(1, 1 << 25, ModelMessage(1, b""))))
        raw.connect(("127.0.0.1", port))
        raw.settimeout(0.2)
        for _ in range(200):
            try:
                raw.sendall(flood)
            except OSError:  # turned away, or nobody reads any more
                break
        mesh.until(lambda: bool(mesh.events["a"]), SHORT_S)
    assert mesh.events["a"] == []
    assert mesh.links["a"].counts.received_bytes == 0
    assert psutil.Process().memory_info().rss - before < 8 << 20


def open_insecure_dealer(mesh, peer_id):
    dealer = mesh.links[peer_id].context.socket(zmq.DEALER)
    dealer.linger = 0
    dealer.connect(f"tcp://127.0.0.1:{mesh.links[peer_id].me.port}")
    return dealer


def test_frames_that_are_too_large_too_many_or_nonsense_change_nothing(mesh):
    mesh.add("a", None, insecure=True)
    dealer = open_insecure_dealer(mesh, "a")
    header = encode(Contributor("x", 1), StatusWanted())
    for frames in ([os.urandom(40)], [header, b"beside"], [header] * 30, [b""]):
        dealer.send_multipart(frames)
    dealer.send(header)
    assert mesh.until(lambda: len(mesh.of("a", Received)) == 1)
    assert mesh.links["a"].counts.refused == 4
    received_bytes = mesh.links["a"].counts.received_bytes
    dealer.send(bytes(MAX_FRAME_BYTES + 1))
    mesh.until(lambda: mesh.links["a"].counts.refused > 4, SHORT_S)
    assert mesh.links["a"].counts.received_bytes == received_bytes, "libzmq dropped it before we saw it"


def test_refused_messages_are_counted_and_not_all_written(mesh, caplog):
    mesh.add("a", None, insecure=True)
    dealer = open_insecure_dealer(mesh, "a")
    for number in range(2000):
        dealer.send(os.urandom(20))
        if number % 500 == 0:
            assert mesh.until(lambda sent=number: mesh.links["a"].counts.refused >= sent)
    assert mesh.until(lambda: mesh.links["a"].counts.refused == 2000)
    refused = [text for text in caplog.messages if "refused" in text]
    assert 1 <= len(refused) <= 12, "three lines each ten seconds, and how many more there were"


def test_a_vector_larger_than_the_model_is_refused(mesh, keys):
    mesh.add("a", keys)
    mesh.add("small", keys, join=["a"], max_values=1000)
    assert know_each_other(mesh, "a", "small")
    send(mesh, "a", "small", ModelMessage(1, b""), VALUES)
    assert mesh.until(lambda: not mesh.links["a"].is_sending())
    assert mesh.of("small", Received) == []


def test_a_receiver_started_anew_in_the_middle_gets_the_whole_model(mesh, keys):
    mesh.add("a", keys)
    port = mesh.add("b", keys, join=["a"]).me.port
    assert know_each_other(mesh, "a", "b")
    send(mesh, "a", "b", ModelMessage(1, b""), VALUES)
    assert mesh.until(lambda: mesh.links["b"].counts.received_bytes > 4 * CHUNK_BYTES)
    assert mesh.links["b"].counts.received_bytes < VALUES.nbytes
    mesh.kill("b")
    mesh.add("b", keys, join=["a"], incarnation=2, port=port)
    mesh.events["a"].clear()
    assert mesh.until(lambda: mesh.of("a", PeerFound))
    send(mesh, "a", "b", ModelMessage(1, b""), VALUES)
    assert mesh.until(lambda: mesh.of("b", Received))
    assert mesh.of("b", Received)[0].values.tobytes() == VALUES.tobytes()


def test_bulk_messages_take_the_first_connection_until_their_own_is_there(mesh, keys):
    mesh.add("a", keys)
    mesh.add("b", keys, join=["a"])
    assert know_each_other(mesh, "a", "b")
    assert mesh.until(lambda: mesh.links["a"].directory.is_heard("b", time.monotonic()))
    send(mesh, "a", "b", StatusWanted(0))
    outbox = mesh.links["a"]._outbox
    link = outbox.link_to("b")
    assert set(link.bulk) == {0}, "ready before it is needed"
    outbox.send(Outgoing("b", StatusWanted(1), None, stream=3))
    assert mesh.until(lambda: link.bulk[3].poll(0, zmq.POLLOUT))
    outbox.send(Outgoing("b", StatusWanted(2), None, stream=3))
    assert mesh.until(lambda: len(mesh.of("b", Received)) == 3)
    assert sorted(event.message.since_round for event in mesh.of("b", Received)) == [0, 1, 2]


def test_a_transfer_resumes_when_its_connection_is_cut_in_the_middle(mesh, keys):
    mesh.add("a", keys)
    mesh.add("b", keys, join=["a"])
    assert know_each_other(mesh, "a", "b")
    send(mesh, "a", "b", ModelMessage(1, b""), VALUES)
    assert mesh.until(lambda: mesh.links["b"].counts.received_bytes > 4 * CHUNK_BYTES)
    link = mesh.links["a"]._outbox.link_to("b")
    link.bulk.pop(0).close(linger=0)
    assert mesh.until(lambda: mesh.of("b", Received))
    assert mesh.of("b", Received)[0].values.tobytes() == VALUES.tobytes()
    assert mesh.links["b"].counts.received_bytes < 1.3 * VALUES.nbytes


def invented(keys, number, incarnation=1):
    """At an address of this machine where nobody listens; by devices that have as many names as one may."""
    host = f"127.1.{number // 250}.{number % 250 + 1}"
    info = PeerInfo(f"invented-{number}", incarnation, Role.TRAINER, host, 9)
    return signed(keys, info, device_of(f"inventor-{number // MAX_NAMES}"))


def test_a_thousand_invented_peers_cost_a_node_neither_its_sockets_nor_its_mesh(mesh, keys):
    """One PeersKnown with as many as it may hold ended each process that got it."""
    mesh.add("a", keys)
    mesh.add("b", keys, join=["a"])
    assert know_each_other(mesh, "a", "b")
    before = psutil.Process().num_fds()
    for incarnation in (1, 2):
        send(
            mesh, "b", "a", PeersKnown(tuple(invented(keys, number, incarnation) for number in range(MAX_MEMBERS - 2)))
        )
    # The second message is beyond what one member can have checked at once (`mdl.transport.links.introducer`).
    assert mesh.until(lambda: len(mesh.of("a", PeerFound)) > MAX_MEMBERS - 10)
    for number in range(MAX_MEMBERS - 2):
        send(mesh, "a", f"invented-{number}", StatusWanted())
    mesh.until(lambda: False, SHORT_S)
    assert psutil.Process().num_fds() - before < 4 * MAX_TRIES
    assert mesh.links["a"].counts.dropped > MAX_MEMBERS - 2 * MAX_TRIES
    mesh.add("c", keys, join=["a"])

    def found(by, peer_id):
        return any(event.info.peer_id == peer_id for event in mesh.of(by, PeerFound))

    assert mesh.until(lambda: found("a", "c") and found("c", "a"))
    assert settled(mesh, "a", "c")
    send(mesh, "a", "c", StatusWanted(7))
    send(mesh, "c", "a", StatusWanted(8))
    assert mesh.until(lambda: mesh.of("a", Received) and mesh.of("c", Received))


def test_without_a_socket_messages_are_dropped_and_counted_until_there_is_one(mesh, keys, caplog):
    sharing = DescriptorShare(peers=50, half_open=50)
    mesh.add_start("a", PeerInfo("a", 1, Role.TRAINER, "", 0), keys, share=sharing)
    mesh.add("b", keys)
    context, taken = mesh.links["a"].context, []
    with contextlib.suppress(zmq.ZMQError):
        while len(taken) < 10_000:
            taken.append(context.socket(zmq.PAIR))
    assert len(taken) < 200
    mesh.links["a"].learn(mesh.introduced("b"))
    send(mesh, "a", "b", StatusWanted(1))
    assert mesh.links["a"].counts.dropped == 1
    assert "no link to 127.0.0.1" in caplog.text
    for socket_ in taken:
        socket_.close()

    def is_sent():
        send(mesh, "a", "b", StatusWanted(2))
        return mesh.of("b", Received)

    assert mesh.until(is_sent)


def test_messages_of_an_older_start_are_dropped(mesh, keys):
    mesh.add("a", keys)
    mesh.add("b", keys, join=["a"], incarnation=5)
    assert know_each_other(mesh, "a", "b")
    mesh.links["a"].learn(signed(keys, PeerInfo("b", 6, Role.TRAINER, "127.0.0.1", 9)))
    send(mesh, "b", "a", StatusWanted())
    mesh.until(lambda: bool(mesh.of("a", Received)), SHORT_S)
    assert mesh.of("a", Received) == []


def add_start(mesh, label, keys, *, incarnation, join):
    """A start of "a" that the mesh of this test knows as `label`."""
    mesh.add_start(label, PeerInfo("a", incarnation, Role.TRAINER, "", 0), keys, join=join)


@pytest.mark.parametrize("join", [("first",), ("b",)], ids=["one greets the other", "a third knows both"])
def test_two_nodes_of_one_name_learn_of_each_other_once(mesh, keys, join):
    add_start(mesh, "first", keys, incarnation=1, join=[])
    mesh.add("b", keys, join=["first"])
    assert know_each_other(mesh, "first", "b")
    add_start(mesh, "copy", keys, incarnation=2, join=join)
    assert mesh.until(lambda: mesh.of("first", NameTaken) and mesh.of("copy", NameTaken))
    mesh.until(lambda: False, SHORT_S)
    assert mesh.of("first", NameTaken) == [NameTaken(Contributor("a", 2), mesh.address("copy"))]
    assert mesh.of("copy", NameTaken) == [NameTaken(Contributor("a", 1), mesh.address("first"))]
    assert not [
        found for label in ("first", "copy") for found in mesh.of(label, PeerFound) if found.info.peer_id == "a"
    ]


@pytest.mark.parametrize("thief", [None, DeviceKey.of(b"thief".ljust(32, b"."))], ids=["by its key", "by another"])
def test_a_forged_namesake_ends_nobody(mesh, keys, thief):
    """Somebody says that it is an earlier start of "a"; at the address it gives nobody of that name answers."""
    add_start(mesh, "first", keys, incarnation=5, join=[])
    mesh.add("b", keys, join=["first"])
    assert know_each_other(mesh, "first", "b")
    for port in (9, mesh.links["b"].me.port, mesh.links["first"].me.port):
        bare = PeerInfo("a", 4, Role.TRAINER, "127.0.0.1", port)
        for info in (bare, signed(keys, bare, thief)):
            hellos = [Hello(info), Hello(info, b"x" * 16, b"y" * 16)]
            are_refused = info.proof is None or thief is not None
            heard = refuses(mesh, "first", 1 + are_refused * len(hellos))
            assert say(mesh, keys, "first", Contributor("a", 4), [*hellos, StatusWanted()], until=heard, at_door=True)
    say(mesh, keys, "first", Contributor("a", 4), [StatusWanted()], until=never, device=thief or device_of("a"))
    assert mesh.of("first", NameTaken) == []


def test_a_copy_that_ends_at_once_has_told_the_first(mesh, keys):
    add_start(mesh, "first", keys, incarnation=1, join=[])
    add_start(mesh, "copy", keys, incarnation=2, join=[])
    mesh.links["first"].learn(mesh.introduced("copy"))
    assert mesh.until(lambda: mesh.of("copy", NameTaken))
    end = threading.Thread(target=mesh.links.pop("copy").close, args=(500,))
    end.start()
    assert mesh.until(lambda: mesh.of("first", NameTaken))
    end.join()


def test_an_announcement_of_our_own_last_start_does_no_harm(mesh, keys):
    """Nobody is there any more, we are there ourselves, or somebody else is."""
    add_start(mesh, "this", keys, incarnation=5, join=[])
    mesh.add("b", keys)
    for port in (9, mesh.links["this"].me.port, mesh.links["b"].me.port):
        mesh.links["this"].learn(signed(keys, PeerInfo("a", 4, Role.TRAINER, "127.0.0.1", port)))
    assert mesh.until(lambda: mesh.of("b", PeerFound))
    mesh.until(lambda: False, SHORT_S)
    assert mesh.of("this", NameTaken) == []
    assert mesh.links["this"].counts.refused == 0
    started = time.monotonic()
    mesh.links.pop("this").close(linger_ms=500)
    assert time.monotonic() - started < 2


def test_an_earlier_start_that_is_not_heard_yet_is_known_from_its_hello(mesh, keys):
    """To a node that met the copy first: so that it can be reached, should the copy leave."""
    mesh.add("b", keys)
    mesh.links["b"].learn(signed(keys, PeerInfo("a", 2, Role.TRAINER, "127.0.0.1", 9)))
    add_start(mesh, "first", keys, incarnation=1, join=["b"])
    assert mesh.until(lambda: mesh.links["b"].directory.others_called("a"))
    assert mesh.links["b"].directory.others_called("a")[0].port == mesh.links["first"].me.port
    assert mesh.links["b"].directory.get("a").incarnation == 2


def test_when_the_copy_has_left_the_first_is_heard_and_reached_again_by_all(mesh, keys):
    """Nobody but the first itself, which gives signs of life, tells the others."""
    add_start(mesh, "first", keys, incarnation=1, join=[])
    mesh.add("b", keys, join=["first"])
    assert know_each_other(mesh, "first", "b")
    add_start(mesh, "copy", keys, incarnation=2, join=["b"])
    assert mesh.until(lambda: mesh.of("copy", NameTaken) and mesh.of("first", NameTaken))
    mesh.kill("copy")
    left = time.monotonic()
    assert [found.info.incarnation for found in mesh.of("b", PeerFound)] == [1, 2]
    send(mesh, "first", "b", StatusWanted(1))
    assert mesh.until(lambda: len(mesh.of("b", PeerFound)) == 3)
    assert SILENT_S - 1 < time.monotonic() - left < SILENT_S + 4
    assert mesh.of("b", Received) == [], "what came in those seconds is dropped"
    send(mesh, "first", "b", StatusWanted(2))
    mesh.links["b"].send("a", StatusWanted(3), None, time.monotonic())
    assert mesh.until(lambda: mesh.of("b", Received) and mesh.of("first", Received))
    assert mesh.of("b", Received) == [Received(Contributor("a", 1), StatusWanted(2))]
    assert mesh.of("first", Received) == [Received(Contributor("b", 1), StatusWanted(3))]


def test_a_full_queue_drops_and_never_blocks(mesh, keys):
    mesh.add("a", keys)
    mesh.links["a"].learn(signed(keys, PeerInfo("nobody", 1, Role.TRAINER, "127.0.0.1", 9)))
    for number in range(1000):
        send(mesh, "a", "nobody", StatusWanted(number))  # one that blocked would never return
    send(mesh, "a", "unknown", StatusWanted())
    assert mesh.links["a"].counts.dropped > 800


def test_what_only_a_bug_would_send_is_refused_here(mesh, keys):
    mesh.add("a", keys)
    with pytest.raises(LocalProtocolError):
        send(mesh, "a", "b", ModelMessage(1, b""))
    with pytest.raises(LocalProtocolError):
        send(mesh, "a", "b", StatusWanted(), VALUES)


def test_a_port_that_is_taken_is_named(mesh, keys):
    port = mesh.add("a", keys).me.port
    with pytest.raises(ConfigError, match=f"port {port} is taken.*0 for any free one"):
        mesh.add("b", keys, port=port)


@pytest.mark.parametrize("address", ["here", "1.2.3.4", "1.2.3.4:", "1.2.3.4:0", "1.2.3.4:70000", ":5750"])
def test_a_bad_join_address_is_named(keys, address):
    with pytest.raises(ConfigError, match=r"HOST:PORT"):
        Links(PeerInfo("a", 1, Role.TRAINER, "", 0), keys, max_values=1, now=0.0, join=[address])


@pytest.mark.parametrize(
    ("host", "join", "insecure", "with_keys"),
    [
        ("0.0.0.0", [], True, False),
        ("127.0.0.1", ["192.0.2.1:5750"], True, False),
        ("127.0.0.1", [], False, False),
        ("127.0.0.1", [], True, True),
    ],
)
def test_plaintext_is_for_loopback_alone(keys, host, join, insecure, with_keys):
    me = PeerInfo("a", 1, Role.TRAINER, "", 0)
    with pytest.raises(ConfigError, match="insecure"):
        Links(
            me,
            keys if with_keys else None,
            max_values=1,
            now=0.0,
            listen_host=host,
            join=join,
            insecure=insecure,
        )


def test_insecure_links_never_learn_an_address_beyond_loopback(mesh):
    mesh.add("a", None, insecure=True)
    with pytest.raises(RemoteProtocolError, match="loopback only"):
        mesh.links["a"].learn(PeerInfo("b", 1, Role.TRAINER, "192.0.2.1", 5750))
