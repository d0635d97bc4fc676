"""One device, or the server, of rounds of Flower (FedAvg, legacy gRPC), in Flower's own environment (flwr and numpy).

`python -m benchmarks round` starts it, as `rival.py`; the server has the rank behind the last device's. A round is over
for a device when it has the mean, which comes with the next round's instructions.
"""

import json
import logging
import sys
import time
from types import SimpleNamespace

import flwr
import numpy as np

_LARGEST_MESSAGE = 1 << 29


def main():
    given = SimpleNamespace(**json.loads(sys.argv[1]))
    logging.getLogger("flwr").setLevel(logging.ERROR)
    hosts = given.hosts
    size, where = len(hosts) - 1, f"{hosts[-1]}:{given.ports[0]}"
    if given.rank == size:
        strategy = flwr.server.strategy.FedAvg(
            fraction_evaluate=0.0, min_fit_clients=size, min_available_clients=size,
            initial_parameters=flwr.common.ndarrays_to_parameters([np.zeros(given.values, np.float32)]),
        )  # fmt: skip
        config = flwr.server.ServerConfig(num_rounds=given.rounds + 1)
        flwr.server.start_server(
            server_address=where, config=config, strategy=strategy, grpc_max_message_length=_LARGEST_MESSAGE
        )
        return
    device = Device(given.rank, size, given.values)
    for _ in range(100):
        try:
            flwr.client.start_client(
                server_address=where, client=device.to_client(), grpc_max_message_length=_LARGEST_MESSAGE
            )
            break
        except Exception:  # noqa: BLE001  the server is not there yet; what is raised differs from version to version
            if device.starts:
                break
            time.sleep(0.2)
    told = {"starts": device.starts[:-1], "ends": device.ends[1:], "is_right": device.is_right}
    print(json.dumps(told), flush=True)


class Device(flwr.client.NumPyClient):
    def __init__(self, rank, size, values):
        self.rank, self.size, self.values = rank, size, values
        self.starts, self.ends, self.is_right = [], [], True

    def fit(self, parameters, config):
        self.ends.append(time.monotonic())
        if self.starts:
            self.is_right &= bool(np.allclose(parameters[0], (self.size + 1) / 2 + len(self.starts) - 1))
        own = np.full(self.values, self.rank + 1 + len(self.starts), np.float32)
        self.starts.append(time.monotonic())
        return [own], 1, {}


if __name__ == "__main__":
    main()
