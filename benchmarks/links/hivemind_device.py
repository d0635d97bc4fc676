"""One device of an averaging round of hivemind, in hivemind's own environment (needs torch and hivemind, not mdl).

`python -m benchmarks round` starts it, as `rival.py`. Devices wait for one another by files in a folder.
"""

import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import hivemind
import torch

_PATIENCE_S = 60.0


def main():
    given = SimpleNamespace(**json.loads(sys.argv[1]))
    given.folder = Path(given.folder)
    hosts, port, size = given.hosts, given.ports[given.rank], len(given.hosts)
    torch.set_num_threads(1)
    first = given.folder / "first"
    known = [] if given.rank == 0 else wait_for(lambda: first.exists() and first.read_text().split())
    dht = hivemind.DHT(initial_peers=known, host_maddrs=[f"/ip4/{hosts[given.rank]}/tcp/{port}"], start=True)
    if given.rank == 0:
        whole = given.folder / "first.part"
        whole.write_text(" ".join(map(str, dht.get_visible_maddrs())))
        whole.rename(first)
    averager = hivemind.averaging.DecentralizedAverager(
        [torch.zeros(given.values)], dht, prefix="round", target_group_size=size, min_group_size=size,
        min_matchmaking_time=1.0, request_timeout=0.5, start=True,
    )  # fmt: skip
    starts, ends, is_right = [], [], True
    for number in range(given.rounds):
        with averager.get_tensors() as (values,):
            values[:] = given.rank + 1 + number
        (given.folder / f"{number}.{given.rank}").touch()
        wait_for(lambda number=number: len(list(given.folder.glob(f"{number}.*"))) == size)
        starts.append(time.monotonic())
        done = averager.step(timeout=_PATIENCE_S)
        ends.append(time.monotonic())
        with averager.get_tensors() as (values,):
            wanted = torch.full_like(values, (size + 1) / 2 + number)
            is_right &= done is not None and bool(torch.allclose(values, wanted))
    wait_for(lambda: (given.folder / "end").touch() or True)
    print(json.dumps({"starts": starts, "ends": ends, "is_right": is_right}), flush=True)
    averager.shutdown()
    dht.shutdown()


def wait_for(claim):
    """Until it is true; returns what it gave. Raises TimeoutError."""
    give_up_at = time.monotonic() + _PATIENCE_S
    while time.monotonic() < give_up_at:
        if found := claim():
            return found
        time.sleep(0.001)
    raise TimeoutError("another device is not there")


if __name__ == "__main__":
    main()
