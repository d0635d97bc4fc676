"""One device, or the server, of Flower (FedAvg, legacy gRPC) that really trains: as `flower_device.py`, on recordings.

Local training is this project's, with the same windows, batches and seeds as a device of the mesh has, so that only
what carries the models differs. It runs in Flower's own environment; what training needs is looked for behind it, in
the packages that are named. The rank behind the last device's is the server, on a host of its own.
"""

import json
import logging
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import flwr
import numpy as np

_LARGEST_MESSAGE = 1 << 29


def main():
    given = SimpleNamespace(**json.loads(sys.argv[1]))
    logging.getLogger("flwr").setLevel(logging.ERROR)
    sys.path[:0] = [str(Path(__file__).resolve().parents[2])]
    sys.path += given.packages
    if given.rank == given.size:
        _serve(given)
    else:
        _train(given)


def _serve(given):
    trainer = _make_trainer(given, 0)
    strategy = flwr.server.strategy.FedAvg(
        fraction_evaluate=0.0, min_fit_clients=given.size, min_available_clients=given.size,
        initial_parameters=flwr.common.ndarrays_to_parameters([trainer.model.values().copy()]),
    )  # fmt: skip
    config = flwr.server.ServerConfig(num_rounds=given.rounds + 1)
    flwr.server.start_server(
        server_address=given.server, config=config, strategy=strategy, grpc_max_message_length=_LARGEST_MESSAGE
    )


def _train(given):
    device = Device(given, _make_trainer(given, given.rank))
    for _ in range(200):
        try:
            flwr.client.start_client(
                server_address=given.server, client=device.to_client(), grpc_max_message_length=_LARGEST_MESSAGE
            )
            break
        except Exception:  # noqa: BLE001  the server is not there yet; what is raised differs from version to version
            if device.begun:
                break
            time.sleep(0.2)
    # What the instructions of one round bring is the result of the round before.
    told = {"begun": device.begun[:-1], "applied": device.begun[1:], "problem": "", "values": device.size}
    print(json.dumps(told), flush=True)


def _make_trainer(given, rank):
    import msgspec

    from benchmarks.evaluation.shares import make_trainer
    from mdl.config import TrainingSettings

    settings = msgspec.convert({"planned_rounds": given.rounds} | json.loads(given.training), TrainingSettings)
    return make_trainer(given.data, given.model, given.split, given.size, rank, given.seed, settings)


class Device(flwr.client.NumPyClient):
    def __init__(self, given, trainer):
        self.given, self.trainer, self.begun = given, trainer, []
        self.size = trainer.model.size

    def fit(self, parameters, config):
        self.begun.append(time.monotonic())
        values = np.ascontiguousarray(parameters[0], np.float32)
        done = len(self.begun) - 1
        if done and self.given.rank == 0:
            np.save(Path(self.given.keep) / f"{done}.npy", values)
        if done == self.given.rounds:  # there is no further round: only its result was to be had
            return [values], 1, {}
        return [self.trainer.train_round(values, done + 1).values.copy()], 1, {}


if __name__ == "__main__":
    main()
