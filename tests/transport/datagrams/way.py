"""Two flows and the way between them, in virtual time: each datagram takes delay_s, some are lost, some come late."""

import heapq
import itertools

from mdl.transport.wire.datagrams import Flow, Seal


class Way:
    """bytes_s: what the link carries; its queue holds queue_s, what comes beyond is lost. down: at this time, if so.

    busy: at this time the second node's process does nothing; what comes for it waits.
    """

    def __init__(
        self,
        rng,
        delay_s=0.001,
        loss=0.0,
        jitter_s=0.0,
        bytes_s=5e6,
        queue_s=0.05,
        down=lambda now: False,
        busy=lambda now: False,
    ):
        self.rng, self.delay_s, self.loss, self.jitter_s = rng, delay_s, loss, jitter_s
        self.bytes_s, self.queue_s, self.down, self.busy = bytes_s, queue_s, down, busy
        self.now, self.count, self.flying = 0.0, itertools.count(), []
        keys = [(bytes([i]) * 8, bytes([i]) * 32) for i in (1, 2)]
        self.flows = [Flow(Seal(*keys[i]), 0.0) for i in (0, 1)]
        for i in (0, 1):
            self.flows[i].connect(Seal(*keys[1 - i]), 0.0)
        self.free_at = [0.0, 0.0]
        self.got = [[], []]
        self.sent_bytes = [0, 0]

    def run(self, until, is_over=lambda: False):
        """Until that time, or until it is over; the time."""
        while not is_over():
            self._let_out()
            awake = self.flows[:1] if self.busy(self.now) else self.flows
            due = min(min(flow.deadline(self.now) for flow in awake), self.flying[0][0] if self.flying else until)
            if due >= until:
                self.now = until
                return self.now
            self.now = max(self.now + 1e-4, due)
            while self.flying and self.flying[0][0] <= self.now:
                _, number, to, datagram = heapq.heappop(self.flying)
                if to == 1 and self.busy(self.now):
                    heapq.heappush(self.flying, (self.now + 0.01, number, to, datagram))
                    continue
                self.got[to] += [(self.now, frames) for frames in self.flows[to].take(datagram, self.now)]
        return self.now

    def _let_out(self):
        for i, flow in enumerate(self.flows[:1] if self.busy(self.now) else self.flows):
            for datagram in flow.packets(self.now):
                self.sent_bytes[i] += len(datagram)
                self.free_at[i] = max(self.free_at[i], self.now) + len(datagram) / self.bytes_s
                if self.free_at[i] - self.now > self.queue_s:
                    self.free_at[i] -= len(datagram) / self.bytes_s
                elif self.rng.random() >= self.loss and not self.down(self.now):
                    at = self.free_at[i] + self.delay_s + self.jitter_s * self.rng.random()
                    heapq.heappush(self.flying, (at, next(self.count), 1 - i, datagram))
