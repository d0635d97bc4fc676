"""The plan of one `mdl up`: all errors of its input are found before a process is started."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import msgspec
import numpy as np

from mdl.config import Config, RoundSection, WebSection, save_config
from mdl.data import DataSet, default_cache_dir, load_data, private_part, split_windows
from mdl.descriptors import claim_share
from mdl.errors import ConfigError
from mdl.own import Own, own_data
from mdl.peers.edge.small.limits import check_limit
from mdl.peers.roles.build import check_exchange
from mdl.peers.web.opening import need_libraries
from mdl.scheduler.given import check_count, is_file, policy_of
from mdl.writing import make_private_folder

# The default data: `mdl up` shows that all works, and says that this is synthetic.
_SHOWN_DATA = "motion"
# The default number of passes over the data, and that of a run that ends by itself (`--until`).
_EPOCHS, _MOST_EPOCHS = 5, 100


@dataclass(frozen=True)
class Run:
    """The plan of one `mdl up`. rounds: aggregations in total. cloud: with a cloud of its own.

    log_level: of this process and those that it starts. own_policy: a function of the user's that orders the rounds.
    page: TCP port of a page about it; 0: none.
    """

    config: Config
    peers: int
    rounds: int
    data: DataSet
    out: Path
    verify: bool
    cloud: bool = False
    log_level: str = "info"
    own_policy: Own | None = None
    page: int = 0


def plan_run(
    config: Config,
    peers: int,
    epochs: int | None,
    out: Path | None,
    policy: str | Own | None,
    *,
    verify: bool,
    cloud: bool,
    log_level: str,
) -> Run:
    """Check everything that can be checked before a process is started, and make the run directory.

    policy: instead of the configuration's, which can name no function. Raises ConfigError or DataError.
    """
    if peers < 1:
        raise ConfigError(f"-n {peers}: expected at least 1 peer")
    rounds = _count_rounds(config, epochs)
    claim_share()
    check_limit(peers)
    config = _with_policy(config, policy, peers)
    if not config.data.spec:
        config = msgspec.structs.replace(config, data=msgspec.structs.replace(config.data, spec=_SHOWN_DATA))
    data = load_data(own_data(config.data.spec), default_cache_dir(), config.seed)
    if cloud:
        config = _with_cloud(config, data)
    data = private_part(data, config.cloud.people, config.seed)
    split_windows(data.train, config.data.split, peers, config.seed)
    page = config.web.port
    if page:
        need_libraries()
    wait_for = 1.0 if config.round.wait_for == RoundSection().wait_for else config.round.wait_for
    config = msgspec.structs.replace(
        config,
        mesh=msgspec.structs.replace(config.mesh, loopback=True, join=(), port=0),
        # They share one machine: none is slow by itself, and two runs are to give the same digits.
        round=msgspec.structs.replace(
            config.round, rounds=rounds, min_peers=peers, keep_deltas=verify, relearn=False, wait_for=wait_for
        ),
        training=msgspec.structs.replace(config.training, planned_rounds=rounds),
        busy=msgspec.structs.replace(config.busy, cpu_percent=100.0),  # they share one processor
        web=WebSection(),  # only this process serves a page
    )
    check_exchange(config.round, verify)
    out = out or Path("runs") / f"up-{datetime.now():%Y%m%d-%H%M%S}"
    try:
        make_private_folder(out)
        if any(out.iterdir()):
            raise ConfigError(f"--out {out} is not empty; choose a new directory")
        save_config(config, out / "config.toml")
    except OSError as error:
        raise ConfigError(f"--out {out}: {error.strerror}") from None
    own = policy if isinstance(policy, Own) else None
    return Run(config, peers, rounds, data, out, verify, cloud, log_level, own, page)


def _count_rounds(config: Config, epochs: int | None) -> int:
    """Return the most rounds. epochs: None if the user does not say; a given number of rounds counts instead."""
    if epochs is None:
        epochs = _MOST_EPOCHS if config.end else _EPOCHS
    if epochs < 1:
        raise ConfigError(f"--epochs {epochs}: expected at least 1")
    return config.round.rounds or epochs * config.training.rounds_per_epoch


def _with_policy(config: Config, policy: str | Own | None, peers: int) -> Config:
    """Return the configuration with the policy that its processes read, wherever they run.

    Raises ConfigError or DataError for a policy that cannot order so many peers.
    """
    name = config.round.policy if policy is None else policy
    if peers > 1:  # a lone peer has no other to aggregate with
        check_count(policy_of(name), peers, f"--policy {name}")
    else:
        policy_of(name)
    text = str(Path(name).absolute()) if isinstance(name, str) and is_file(name) else str(name)
    return msgspec.structs.replace(config, round=msgspec.structs.replace(config.round, policy=text))


def _with_cloud(config: Config, data: DataSet) -> Config:
    """Add a cloud on this machine.

    A quarter of the training people gave it their data, unless the user says how many.
    """
    people = config.cloud.people or max(1, len(np.unique(data.train.subject)) // 4)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    # The cloud will have one mesh only: each of its uploads is worth a cycle.
    section = msgspec.structs.replace(config.cloud, people=people, address=address, updates=1)
    return msgspec.structs.replace(config, cloud=section)
