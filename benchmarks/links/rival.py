"""One device of a plain averaging round: gloo's all-reduce, or a ring or chain of ZeroMQ sockets, without any faults.

`python -m benchmarks round` starts it once a device, with one word of JSON. It prints when each round began and ended
here, by the machine's clock.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import zmq

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # also when called by its path

from mdl.protocol.segments import segment_values
from mdl.transport.trust.keys import MeshKeys


def main() -> None:
    given = SimpleNamespace(**json.loads(sys.argv[1]))
    hosts, ports = given.hosts, given.ports
    # Without a join code nothing is encrypted.
    keys = MeshKeys.from_code(given.code) if given.code else None
    kinds: dict[str, Any] = {"gloo": _Gloo, "ring": _Ring, "chain": _Chain}
    device = kinds[given.kind](given.rank, hosts, ports, keys)
    starts, ends, is_right = [], [], True
    for number in range(given.rounds):
        own = np.full(given.values, given.rank + 1 + number, np.float32)
        device.wait_for_all()
        starts.append(time.monotonic())
        device.average(own)
        ends.append(time.monotonic())
        is_right &= bool(np.allclose(own, (len(hosts) + 1) / 2 + number))
    device.close()
    print(json.dumps({"starts": starts, "ends": ends, "is_right": is_right}))


class _Gloo:
    def __init__(self, rank: int, hosts: list[str], ports: list[int], keys: MeshKeys | None) -> None:
        import torch
        import torch.distributed as distributed

        torch.set_num_threads(1)
        self._torch, self._distributed, self._size = torch, distributed, len(hosts)
        where = f"tcp://{hosts[0]}:{ports[0]}"
        distributed.init_process_group("gloo", init_method=where, rank=rank, world_size=len(hosts))

    def wait_for_all(self) -> None:
        self._distributed.barrier()

    def average(self, own: Any) -> None:
        values = self._torch.from_numpy(own)
        self._distributed.all_reduce(values)
        values /= self._size

    def close(self) -> None:
        self._distributed.barrier()
        self._distributed.destroy_process_group()


class _Sockets:
    """Connections between neighbours of a line or a ring: one socket for each direction, nothing else."""

    def __init__(self, keys: MeshKeys | None) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._keys = keys

    def listen(self, host: str, port: int) -> zmq.Socket[bytes]:
        endpoint = self._context.socket(zmq.PULL)
        endpoint.rcvhwm = 0
        if self._keys is not None:
            endpoint.curve_server, endpoint.curve_secretkey = True, self._keys.server_secret
        endpoint.bind(f"tcp://{host}:{port}")
        return endpoint

    def dial(self, host: str, port: int) -> zmq.Socket[bytes]:
        endpoint = self._context.socket(zmq.PUSH)
        endpoint.sndhwm = 0
        if keys := self._keys:
            endpoint.curve_serverkey = keys.server_public
            endpoint.curve_publickey, endpoint.curve_secretkey = keys.client_public, keys.client_secret
        endpoint.connect(f"tcp://{host}:{port}")
        return endpoint

    def close(self) -> None:
        self._context.destroy(linger=2000)


class _Ring:
    """Reduce-scatter and all-gather; each part goes on as soon as it is there."""

    def __init__(self, rank: int, hosts: list[str], ports: list[int], keys: MeshKeys | None) -> None:
        self._rank, self._size = rank, len(hosts)
        self._sockets = _Sockets(keys)
        self._in = self._sockets.listen(hosts[rank], ports[2 * rank])
        after = (rank + 1) % self._size
        self._out = self._sockets.dial(hosts[after], ports[2 * after])

    def wait_for_all(self) -> None:
        for _ in range(2):  # once around says that all are there, the second time that all know
            if self._rank == 0:
                self._out.send(b"")
                self._in.recv()
            else:
                self._in.recv()
                self._out.send(b"")

    def average(self, own: Any) -> None:
        size, shares = self._size, np.array_split(own, self._size)
        most = segment_values(own.size)
        parts = max(-(-share.size // most) for share in shares)

        def part(step: int, number: int) -> Any:
            """Of the share that this device sends in a step."""
            return np.array_split(shares[(self._rank - step) % size], parts)[number]

        for number in range(parts):
            self._send(part(0, number))
        for step in range(1, 2 * size - 1):
            for number in range(parts):
                values = self._receive()
                mine = part(step, number)
                if step < size:
                    mine += values
                    if step == size - 1:
                        mine /= size
                else:
                    mine[:] = values
                if step < 2 * size - 2:
                    self._send(mine)

    def close(self) -> None:
        self.wait_for_all()
        self._sockets.close()

    def _send(self, values: Any) -> None:
        self._out.send(values.data, copy=False)

    def _receive(self) -> Any:
        return np.frombuffer(self._in.recv(copy=False).buffer, np.float32)


class _Chain:
    """Partial sums go up the line in segments, the mean comes down while others go up."""

    def __init__(self, rank: int, hosts: list[str], ports: list[int], keys: MeshKeys | None) -> None:
        self._size, self._is_last = len(hosts), rank == len(hosts) - 1
        self._sockets = sockets = _Sockets(keys)
        self._below = sockets.listen(hosts[rank], ports[2 * rank]) if rank else None
        self._above = None if self._is_last else sockets.listen(hosts[rank], ports[2 * rank + 1])
        self._up = None if self._is_last else sockets.dial(hosts[rank + 1], ports[2 * rank + 2])
        self._down = sockets.dial(hosts[rank - 1], ports[2 * rank - 1]) if rank else None

    def wait_for_all(self) -> None:
        if self._below:
            self._below.recv()
        if self._up and self._above:
            self._up.send(b"")
            self._above.recv()
        if self._down:
            self._down.send(b"")

    def average(self, own: Any) -> None:
        most = segment_values(own.size)
        segments = [own[start : start + most] for start in range(0, own.size, most)]
        if self._below is None:
            for segment in segments:
                self._send(self._up, segment)
        below, above = iter(segments), iter(segments)
        handlers: dict[Any, Callable[[Any], None]] = {}
        if self._below is not None:
            handlers[self._below] = lambda values: self._add(next(below), values)
        if self._above is not None:
            handlers[self._above] = lambda values: self._take(next(above), values)
        left = len(segments) * len(handlers)
        poller = zmq.Poller()
        for endpoint in handlers:
            poller.register(endpoint, zmq.POLLIN)
        while left:
            for endpoint, _ in poller.poll():
                handlers[endpoint](np.frombuffer(endpoint.recv(copy=False).buffer, np.float32))
                left -= 1

    def close(self) -> None:
        self.wait_for_all()
        self._sockets.close()

    def _add(self, mine: Any, values: Any) -> None:
        mine += values
        if self._is_last:
            mine /= self._size
        self._send(self._down if self._is_last else self._up, mine)

    def _take(self, mine: Any, values: Any) -> None:
        mine[:] = values
        self._send(self._down, mine)

    @staticmethod
    def _send(endpoint: zmq.Socket[bytes] | None, values: Any) -> None:
        if endpoint is not None:
            endpoint.send(values.data, copy=False)


if __name__ == "__main__":
    main()
