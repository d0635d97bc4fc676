"""A switch in user space, for networks that are slow or lose frames: every frame waits, and some never leave.

Kernels without netem have no other way. Runs inside a namespace with the ports; says "ready", ends with its stdin.

With --flap-s UP,DOWN the first port comes and goes: nothing passes there for DOWN seconds after each UP.

    python slow_switch.py --delay-s 0.3 --loss 0.2 --seed 0 v0 v1 v2
"""

import argparse
import heapq
import random
import select
import socket
import sys
import time

SOL_PACKET, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 263, 15, 23
ALL_PROTOCOLS = socket.htons(3)
# A frame of the largest kind and the header that says what of its checksum is still to be done.
FRAME_BYTES, HEADER_BYTES = 65_600, 10
BUFFER_BYTES = 4 << 20
# A queue of a second at 100 Mbit/s; what comes beyond is lost, as at any switch.
MOST_WAITING = 10_000
TURN = 64
IPV4_MULTICAST, IPV6_MDNS = bytes([0x01, 0x00, 0x5E]), bytes([0x33, 0x33, 0, 0, 0, 0xFB])


def open_port(name):
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, ALL_PROTOCOLS)
    port.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    port.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    port.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    port.bind((name, 0))
    port.setblocking(False)
    return port


class Switch:
    def __init__(self, ports, delay_s, loss, rng, flap_s=(1.0, 0.0), no_multicast=False):
        self.ports, self.delay_s, self.loss, self.rng, self.flap_s = ports, delay_s, loss, rng, flap_s
        self.no_multicast = no_multicast
        self.behind, self.waiting, self.count = {}, [], 0

    def take(self, port, now):
        for _ in range(TURN):
            try:
                frame = port.recv(FRAME_BYTES)
            except BlockingIOError:
                return
            to, sender = frame[HEADER_BYTES : HEADER_BYTES + 6], frame[HEADER_BYTES + 6 : HEADER_BYTES + 12]
            self.behind[sender] = port
            if self.no_multicast and (to[:3] == IPV4_MULTICAST or to == IPV6_MDNS):
                continue
            targets = [self.behind[to]] if to in self.behind else [other for other in self.ports if other is not port]
            if self.is_away(now):
                targets = [] if port is self.ports[0] else [other for other in targets if other is not self.ports[0]]
            if len(self.waiting) < MOST_WAITING and self.rng.random() >= self.loss:
                self.count += 1
                heapq.heappush(self.waiting, (now + self.delay_s, self.count, targets, frame))

    def is_away(self, now):
        up_s, down_s = self.flap_s
        return down_s > 0 and now % (up_s + down_s) >= up_s

    def give(self, now):
        while self.waiting and self.waiting[0][0] <= now:
            _, _, targets, frame = heapq.heappop(self.waiting)
            for port in targets:
                try:
                    port.send(frame)
                except OSError:  # its queue is full
                    continue

    def wait_ms(self, now):
        return 1000 * max(0.0, self.waiting[0][0] - now) if self.waiting else None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("ports", nargs="+")
    parser.add_argument("--delay-s", type=float, default=0.0)
    parser.add_argument("--loss", type=float, default=0.0)
    parser.add_argument("--no-multicast", action="store_true", help="lose what goes to groups, as guest networks do")
    parser.add_argument("--flap-s", default="1,0")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    ports = {port.fileno(): port for port in map(open_port, given.ports)}
    flap_s = tuple(map(float, given.flap_s.split(",")))
    switch = Switch(
        list(ports.values()), given.delay_s, given.loss, random.Random(given.seed), flap_s, given.no_multicast
    )
    poll = select.poll()
    for fd in (*ports, sys.stdin.fileno()):
        poll.register(fd, select.POLLIN)
    print("ready", flush=True)
    while True:
        for fd, _ in poll.poll(switch.wait_ms(time.monotonic())):
            if fd == sys.stdin.fileno():
                return
            switch.take(ports[fd], time.monotonic())
        switch.give(time.monotonic())


if __name__ == "__main__":
    main()
