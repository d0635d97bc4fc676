"""A stranger on the network, with raw sockets alone: what it does is the first argument, whom it meets the rest.

    python outsider.py connections|slow|garbage|mdns|sink AMOUNT HOST:PORT ...

connections: so many are opened and say nothing, at most AT_ONCE at a time, those that are ended are opened again.
slow: AT_ONCE connections say a ZMTP greeting, a byte a second, until AMOUNT seconds are over.
garbage: AMOUNT megabytes of random bytes, after a true greeting or at once. mdns: so many packets to the group, of
random bytes, of records without end, and of services of the mesh whose mark the second argument is.
sink: listens there instead, and ends who says more than a greeting, or has waited while AMOUNT came after it.
Prints one line when it is done: what it has sent and opened. Ends when its stdin does.
"""

import contextlib
import os
import random
import selectors
import socket
import struct
import sys
import threading
import time

AT_ONCE = 500
# ZMTP 3.1: signature, version, mechanism, not a server, filler.
GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)
# Megabytes a second: a sixth of a gigabit link, so that the mesh has the rest of it.
PACE_MB_S = 20
GROUP = ("224.0.0.251", 5353)


def opened(target):
    connection = socket.socket()
    connection.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        connection.connect(target)
    return connection


def is_over(connection):
    try:
        while said := connection.recv(4096):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return not said


def connect(targets, amount):
    count, alive = 0, []
    while count < amount:
        alive = [each for each in alive if not (is_over(each) and each.close() is None)]
        for _ in range(min(AT_ONCE - len(alive), 50, amount - count)):
            alive.append(opened(targets[count % len(targets)]))
            count += 1
        time.sleep(0.01)
    return count, 0


def linger(targets, seconds):
    """Slow-loris: each connection gets on, and never has anything whole."""
    count, sent, until = 0, 0, time.monotonic() + seconds
    alive = {}
    while time.monotonic() < until:
        for connection in [each for each in alive if is_over(each)]:
            connection.close()
            del alive[connection]
        while len(alive) < AT_ONCE:
            alive[opened(targets[count % len(targets)])] = 0
            count += 1
        for connection, place in alive.items():
            with contextlib.suppress(OSError):
                sent += connection.send(GREETING[place : place + 1] or b"\x04")
                alive[connection] = place + 1
        time.sleep(1.0)
    return count, sent


def pour(targets, megabytes):
    """Random bytes, and frames that claim a gigabyte, for as long as each connection bears it."""
    count, sent, began = 0, 0, time.monotonic()
    rng = random.Random(1)
    while sent < megabytes << 20:
        first = rng.choice((b"", GREETING, GREETING + b"\x06" + struct.pack("!Q", 1 << 30), b"\x02" + bytes(8)))
        count += 1
        with socket.socket() as connection, contextlib.suppress(OSError):
            connection.settimeout(2.0)
            connection.connect(targets[count % len(targets)])
            connection.sendall(first)
            sent += len(first)
            for _ in range(64):
                sent += connection.send(os.urandom(1 << 16))
                time.sleep(max(0.0, sent / PACE_MB_S / (1 << 20) - (time.monotonic() - began)))
    return count, sent


def announce(mark, packets):
    """Random bytes; answers full of names; instances of the mesh's own mark, each another one."""
    rng, sent = random.Random(2), 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        out.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 255)
        for number in range(packets):
            sent += out.sendto(rng.choice((os.urandom(1200), records(mark, number))), GROUP)
            if number % 20 == 0:
                time.sleep(0.01)
    return packets, sent


def sink(targets, most):
    """What any listener has to do for those who connect, and no more."""
    ready, waiting = selectors.DefaultSelector(), {}
    for target in targets:
        ready.register(socket.create_server(target, backlog=100), selectors.EVENT_READ, "listens")
    print("sink: listens", flush=True)
    while True:
        for key, _ in ready.select():
            if key.data:
                connection = key.fileobj.accept()[0]
                connection.setblocking(False)
                ready.register(connection, selectors.EVENT_READ)
                waiting[connection] = 0
            elif key.fileobj in waiting:
                with contextlib.suppress(OSError):
                    said = len(key.fileobj.recv(8192))
                    waiting[key.fileobj] += said or len(GREETING) + 1
        over = [each for each, said in waiting.items() if said > len(GREETING)]
        for connection in over + list(waiting)[: max(0, len(waiting) - most)]:
            if waiting.pop(connection, None) is not None:
                ready.unregister(connection)
                connection.close()


def records(mark, number):
    """PTR records of `_mdl._tcp.local.` to instances that nobody has heard of, for an hour."""
    service = name("_mdl", "_tcp", "local")
    answers = b"".join(
        service + struct.pack("!HHIH", 12, 1, 3600, len(target)) + target
        for target in (name(f"{mark}-{number:08x}{part:08x}", "_mdl", "_tcp", "local") for part in range(10))
    )
    return struct.pack("!HHHHHH", 0, 0x8400, 0, 10, 0, 0) + answers


def name(*labels):
    return b"".join(bytes([len(label)]) + label.encode() for label in labels) + b"\0"


def main():
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    kind, amount, rest = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    if kind == "sink":
        sink([(host, int(port)) for host, port in (each.split(":") for each in rest)], amount)
    elif kind == "mdns":
        count, sent = announce(rest[0], amount)
    else:
        targets = [(host, int(port)) for host, port in (each.split(":") for each in rest)]
        count, sent = {"connections": connect, "slow": linger, "garbage": pour}[kind](targets, amount)
    print(f"{kind}: {count} opened, {sent} bytes", flush=True)


if __name__ == "__main__":
    main()
