"""A whole node, but that its "training" is one number in a vector of any size: for fault tests.

Real process, links, discovery, identity, file cache. Tells stdout, a line of JSON each, whatever a test waits for; ends
as a user's node does, by signals, or when its stdin ends. Sums of whole numbers are exact in float32, so a test can add
up what was contributed to a round.
"""

import argparse
import json
import os
import sys
import threading
import time
from pathlib import Path

import msgspec
import numpy as np

from mdl.config import load_config
from mdl.files.checkpoint import CachedModel, ModelCache
from mdl.files.figures import Journal
from mdl.peers.edge.identity import claim_identity, release_identity
from mdl.peers.edge.node import METRICS, drive, record_round, start_peer
from mdl.peers.edge.resume import ResumeState
from mdl.peers.edge.sampler import Sampler
from mdl.peers.edge.small import set_up_heap
from mdl.peers.interrupts import stopped_by_signals
from mdl.peers.roles.build import build_machine, configured_start, outer_of
from mdl.protocol.counts import no_evaluation
from mdl.protocol.delta import ModelDelta
from mdl.protocol.grid import grid_of
from mdl.protocol.machine import (
    DeltaRecalled,
    Evaluate,
    Evaluated,
    Finish,
    KeepDelta,
    LocalDeltaReady,
    PeerFound,
    RecallDelta,
    Received,
    RecordRound,
    SaveBallot,
    SaveModel,
    Send,
    TrainLocally,
    TransferProgressed,
)
from mdl.protocol.round_messages import BroadcastOrdered, PeerReport, SegmentMessage
from mdl.protocol.segments import SMALLEST_SEGMENT_BYTES, mask_of
from mdl.protocol.vocabulary import History, TrainingReport
from mdl.transport.trust.keys import Mesh

BLOCK = SMALLEST_SEGMENT_BYTES // 4  # values in which a device counts as a whole
SCHEMA = "one-number"
# A number in a vector: a delta may be 8 times the model's largest value.
UNIT = 2.0**-7


class Device:
    """The slow work of a node. Its delta in a round is the number told at the start of that round."""

    def __init__(self, me, out, size, train_s=0.0):
        self.me, self.size, self.cache = me, size, ModelCache(out)
        self.train_s, self.is_over = train_s, threading.Event()
        self.numbers = np.random.default_rng([me.incarnation, *me.peer_id.encode()])
        self.fresh, self.begun = {}, np.zeros(size, np.float32)

    def restore(self):
        cached = self.cache.load()
        if cached is None:
            return ResumeState(self.begun)
        history, self.begun = msgspec.json.decode(cached.extra["history"], type=History), cached.values
        return ResumeState(cached.values, cached.round_id, history)

    def work(self, out):
        metrics = Journal(out / METRICS)
        return {
            TrainLocally: self.train,
            RecallDelta: lambda effect: DeltaRecalled(effect.round_id, self.fill(self.fresh.get(effect.round_id))),
            Evaluate: lambda effect: Evaluated(effect.round_id, no_evaluation(0)),
            SaveModel: self.save,
            SaveBallot: lambda effect: None,
            KeepDelta: self.tell_delta,
            RecordRound: lambda effect: record_round(metrics, effect),
        }

    def train(self, effect):
        number = self.fresh[effect.round_id] = int(self.numbers.integers(1, 1000))
        self.is_over.wait(self.train_s)  # stands for work that leaves the processor to others
        tell(trained=effect.round_id, number=number)
        delta = ModelDelta(self.fill(number), 1.0, frozenset([self.me]))
        return LocalDeltaReady(effect.round_id, delta, TrainingReport(0.0, 1, 0.0))

    def fill(self, number):
        return None if number is None else np.full(self.size, number * UNIT, np.float32)

    def save(self, effect):
        extra = {"history": msgspec.json.encode(effect.history).decode()}
        self.begun = effect.parameters
        self.cache.save(CachedModel(effect.parameters, effect.round_id, SCHEMA, "faults", extra, effect.digest))
        tell(stands=effect.round_id, digest=effect.digest.hex(), forks=len(effect.history.lineage))

    def tell_delta(self, effect):
        delta = effect.delta
        totals = grid_of(self.begun, delta.room).to_mean(delta.values, 1.0) / UNIT
        sums = totals[::BLOCK]
        for start, total in enumerate(sums):
            assert (totals[start * BLOCK : (start + 1) * BLOCK] == total).all()
        who = sorted((each.peer_id, each.incarnation) for each in delta.contributors)
        partly = {
            each.contributor.peer_id: (~mask_of(each.lacks, each.segment_values, self.size))[::BLOCK].tolist()
            for each in delta.partial
        }
        if not np.ptp(sums):
            sums = sums[:1]  # a pipe that nobody reads holds 64 KB
        about = {"sum": float(sums[0]), "sums": sums.tolist(), "theta": delta.theta, "contributors": who}
        tell(**{effect.name: effect.round_id}, **about, partly=partly)


class Teller:
    """`observe` of the runtime: who leads, and how far what arrives has come."""

    def __init__(self, machine):
        self.machine, self.leads, self.half_way, self.accused = machine, False, (None, 0), {}

    def look(self, now, event, effects):
        if (self.machine.agent is not None) != self.leads:
            self.leads = not self.leads
            tell(leads=self.leads, term=self.machine.succession.term)
        match event:
            case PeerFound(info=info):
                tell(found=info.peer_id, incarnation=info.incarnation)
            case TransferProgressed(sender=sender, received_bytes=received, size_bytes=size):
                part = self.machine.trainer.part
                if part and part.incoming:
                    carried = len(part.hold.contributors)
                    tell(receives_from=sender.peer_id, share=received / size, holds=carried, round=part.round_id)
            case Received(message=SegmentMessage() | BroadcastOrdered()):
                self.tell_segments()
        for effect in effects:
            if isinstance(effect, Finish):
                tell(ends=effect.exit_code, problem=effect.problem)
            if isinstance(effect, Send) and isinstance(effect.message, PeerReport):
                accused = {each.peer_id: (each.round_id, each.reason) for each in effect.message.accused}
                if accused != self.accused:
                    self.accused = accused
                    tell(accuses=accused)

    def tell_segments(self):
        """Of a round in segments: each order, and when another quarter is here."""
        part = self.machine.trainer.part if self.machine.trainer else None
        exchange = part.broadcast.exchange if part else None
        if exchange is None:
            return
        quarters = 4 * exchange.result.received_bytes // exchange.result.values.nbytes
        if exchange.order != self.half_way[0]:
            self.half_way = exchange.order, quarters
            tell(follows=part.round_id, lost=len(exchange.order.lost))
        elif quarters > self.half_way[1]:
            self.half_way = exchange.order, quarters
            owns = zip(exchange.order.order, exchange.order.owns, strict=True)
            owners = {peer.peer_id: count for peer, count in owns}
            tell(exchanges=part.round_id, quarters=quarters, whole=exchange.is_whole, owns=owners)


def tell(**what):
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("code")
    parser.add_argument("name")
    parser.add_argument("out", type=Path)
    parser.add_argument("--agent", action="store_true", help="without a trainer, as `mdl agent`")
    parser.add_argument("--values", type=int, default=1000)
    parser.add_argument("--train-s", type=float, default=0.0)
    parser.add_argument("--set", nargs="*", default=[])
    given = parser.parse_args()
    set_up_heap()  # as `mdl peer`
    config = load_config(None, {}, ["round.keep_deltas=true", *given.set])  # the later word counts
    mesh = Mesh("bench", None) if config.mesh.insecure else Mesh.from_code(given.code)
    me, out = claim_identity(given.out, given.name, given.out / given.name)
    device = Device(me, out, given.values, given.train_s)
    state = None if given.agent else device.restore()
    start = configured_start(
        config, me, state and state.start(SCHEMA, SCHEMA, None, outer_of(config.round)), time.monotonic()
    )
    machine = build_machine(start, state and state.parameters)
    runtime = start_peer(
        start,
        machine,
        mesh,
        config.mesh,
        device.work(out),
        observe=Teller(machine).look,
        sample=Sampler(config.device) if state else None,
        story_path=out / "story.jsonl",
    )
    tell(ready=me.peer_id, incarnation=me.incarnation, round=state.round_id if state else None)
    threading.Thread(target=lambda: (sys.stdin.read(), device.is_over.set(), runtime.stop()), daemon=True).start()
    with stopped_by_signals(runtime):
        drive(runtime, mesh, config.mesh)
    release_identity(out)


if __name__ == "__main__":
    os.environ.pop("MDL_LIFELINE", None)
    main()
