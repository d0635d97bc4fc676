"""A cloud's end and its learners' ends on loopback: who gets through, and what survives a restart of either."""

import random
import time

import pytest
import zmq

from mdl.errors import ConfigError
from mdl.protocol.cloud_messages import LessonCurrent, LessonMessage, LessonWanted, UpdateMessage
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import Received
from mdl.protocol.vocabulary import Packed
from mdl.transport.links.hub import CloudHub, Names, Spoke
from mdl.transport.trust.keys import DeviceKey

OWN = DeviceKey.of(bytes(range(32)))
MODEL = Packed(random.Random(1).randbytes((1 << 22) - 1))  # 4 MiB, and no whole number of float32
PATIENCE_S = 20.0


class Star:
    """One hub and its spokes in one thread: `until` runs them all until something is true."""

    def __init__(self):
        self.ends, self.events = {}, {}

    def add_hub(self, keys, *, port=0, max_bytes=1 << 22, incarnation=1, **settings):
        me = Contributor("cloud", incarnation)
        hub = CloudHub(me, keys, max_bytes=max_bytes, listen_host="127.0.0.1", port=port, **settings)
        return self._add("cloud", hub)

    def add_spoke(self, peer_id, keys, port, *, incarnation=1, label=None, device=None):
        me, address = Contributor(peer_id, incarnation), f"127.0.0.1:{port}"
        spoke = Spoke(me, keys, address, max_bytes=1 << 22, device=device)
        return self._add(label or peer_id, spoke)

    def _add(self, label, end):
        self.ends[label] = end
        self.events.setdefault(label, [])
        return end

    def kill(self, label):
        self.ends.pop(label).close()

    def send(self, label, receiver, message, values=None):
        self.ends[label].send(receiver, message, values, time.monotonic())

    def received(self, label, kind=object):
        return [e for e in self.events[label] if isinstance(e, Received) and isinstance(e.message, kind)]

    def until(self, claim, patience_s=PATIENCE_S):
        give_up_at = time.monotonic() + patience_s
        while not (found := claim()) and time.monotonic() < give_up_at:
            poller = zmq.Poller()
            for end in self.ends.values():
                for endpoint in end.pollable():
                    poller.register(endpoint, zmq.POLLIN)
            poller.poll(20)
            for label, end in self.ends.items():
                self.events[label] += end.receive(time.monotonic())
        return found


@pytest.fixture
def star():
    star = Star()
    yield star
    for label in list(star.ends):
        star.kill(label)


def wanted(pupil):
    return LessonWanted(pupil, "schema")


def test_questions_and_models_pass_both_ways_over_the_connection_a_learner_opened(star, keys):
    port = star.add_hub(keys).port
    for name in ("a", "b"):
        star.add_spoke(name, keys, port)
        star.send(name, "cloud", wanted(name))
    assert star.until(lambda: len(star.received("cloud", LessonWanted)) == 2)
    star.send("cloud", "a", LessonCurrent("a", 1))
    star.send("cloud", "b", LessonMessage("b", 1), MODEL)
    star.send("a", "cloud", UpdateMessage("a", "schema", 1, b"d"), Packed(MODEL[::-1]))
    assert star.until(lambda: star.received("a") and star.received("b") and star.received("cloud", UpdateMessage))
    assert star.received("a")[0].message == LessonCurrent("a", 1)
    assert star.received("b")[0].values == MODEL
    (update,) = star.received("cloud", UpdateMessage)
    assert (update.sender, update.values) == (Contributor("a", 1), MODEL[::-1])


def test_without_the_join_code_nobody_is_heard(star, keys, other_keys):
    port = star.add_hub(keys).port
    star.add_spoke("stranger", other_keys, port)
    star.add_spoke("a", keys, port)
    star.send("stranger", "cloud", wanted("stranger"))
    star.send("a", "cloud", wanted("a"))
    assert star.until(lambda: star.received("cloud"))
    star.until(lambda: False, 0.5)
    assert {event.sender.peer_id for event in star.received("cloud")} == {"a"}


def test_what_a_learner_offers_beyond_the_models_size_is_never_allocated(star, keys):
    port = star.add_hub(keys, max_bytes=1000).port
    star.add_spoke("a", keys, port)
    star.send("a", "cloud", UpdateMessage("a", "schema", 1, b"d"), MODEL)
    assert star.until(lambda: not star.ends["a"].is_sending() and star.ends["a"].counts.received_bytes)
    assert not star.received("cloud")


def test_a_cloud_that_is_started_anew_at_its_address_is_found_again(star, keys):
    port = star.add_hub(keys).port
    star.add_spoke("a", keys, port)
    star.send("a", "cloud", wanted("a"))
    assert star.until(lambda: star.received("cloud"))
    star.kill("cloud")
    star.events["cloud"].clear()
    star.add_hub(keys, port=port, incarnation=2)

    def asked_again():
        star.send("a", "cloud", wanted("a"))
        return star.received("cloud")

    assert star.until(asked_again)
    star.send("cloud", "a", LessonCurrent("a", 3))
    assert star.until(lambda: star.received("a"))


def test_an_earlier_start_of_a_learner_is_not_heard_any_more_and_gets_no_answers(star, keys):
    port = star.add_hub(keys).port
    star.add_spoke("a", keys, port, incarnation=1, label="old", device=OWN)
    star.add_spoke("a", keys, port, incarnation=2, label="new", device=OWN)
    star.send("new", "cloud", wanted("a"))
    assert star.until(lambda: star.received("cloud"))
    star.send("old", "cloud", wanted("a"))
    star.until(lambda: False, 0.5)
    assert [event.sender.incarnation for event in star.received("cloud")] == [2]
    star.send("cloud", "a", LessonCurrent("a", 1))
    assert star.until(lambda: star.received("new"))
    assert not star.received("old")


@pytest.mark.parametrize("owns_pupils", [True, False])
def test_one_device_does_not_speak_in_anothers_name(star, keys, owns_pupils):
    """Neither by its name nor, where a pupil is one device's, for its pupil; and gets no answer that is for it."""
    port = star.add_hub(keys, owns_pupils=owns_pupils).port
    star.add_spoke("a", keys, port)
    star.send("a", "cloud", wanted("ann"))
    assert star.until(lambda: star.received("cloud"))
    star.add_spoke("a", keys, port, incarnation=9, label="joker")
    star.add_spoke("b", keys, port)
    star.send("joker", "cloud", wanted("ann"))
    star.send("b", "cloud", wanted("ann"))
    star.send("b", "cloud", wanted("bob"))
    assert star.until(lambda: [it for it in star.received("cloud") if it.message.pupil == "bob"])
    heard = [(event.sender.peer_id, event.message.pupil) for event in star.received("cloud")]
    assert heard == [("a", "ann"), ("b", "bob")] if owns_pupils else [("a", "ann"), ("b", "ann"), ("b", "bob")]
    assert star.until(lambda: star.ends["cloud"].counts.refused == (2 if owns_pupils else 1))
    star.send("cloud", "a", LessonCurrent("ann", 1))
    assert star.until(lambda: star.received("a"))
    # Who speaks under another one's name is told so, and nothing else; who came first is told nothing of it.
    assert star.until(lambda: star.received("joker"))
    (told,) = star.received("joker")
    assert told.message.reason.startswith("the name a belongs to another device here, which had it first; give this")
    assert len(told.message.reason) < 200
    assert [event.message for event in star.received("a")] == [LessonCurrent("ann", 1)]
    refused = [event.message for event in star.received("b")]
    if owns_pupils:
        (user,) = refused
        assert (user.pupil, user.digest) == ("ann", b"")
        assert user.reason.startswith("user ann belongs to another device here, which had it first; have its line")
    else:
        assert refused == []


def test_whose_a_name_is_holds_when_the_cloud_is_started_anew(star, keys):
    port = star.add_hub(keys, names=Names({"a": OWN.link_key})).port
    star.add_spoke("a", keys, port, label="joker")
    star.add_spoke("a", keys, port, device=OWN)
    star.send("joker", "cloud", LessonWanted("joker", "schema"))
    star.send("a", "cloud", wanted("a"))
    assert star.until(lambda: star.received("cloud"))
    assert star.until(lambda: star.ends["cloud"].counts.refused == 1)
    assert [event.message.pupil for event in star.received("cloud")] == ["a"]


def test_without_keys_only_loopback_is_reached(keys):
    with pytest.raises(ConfigError, match="beyond loopback"):
        Spoke(Contributor("a", 1), None, "192.0.2.1:5750", max_bytes=1, insecure=True)
    with pytest.raises(ConfigError, match="join code"):
        Spoke(Contributor("a", 1), keys, "127.0.0.1:5750", max_bytes=1, insecure=True)
