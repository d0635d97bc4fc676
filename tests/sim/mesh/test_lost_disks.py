"""A device whose disk is replaced has no vote until w holds what it trained since, also where its clock is behind."""

from __future__ import annotations

import pytest

from mdl.peers.roles.build import build_machine
from mdl.peers.trials.run_plan import build_mesh, process_start
from mdl.protocol.vocabulary import Role
from mdl.sim.mesh.process import Disk
from mdl.sim.plans.fault_plan import Cut, FaultPlan


@pytest.mark.parametrize("incarnation", [2, 0], ids=["later", "the clock is behind"])
def test_a_round_has_one_result_though_a_device_comes_back_with_an_empty_disk(incarnation: int) -> None:
    """p0 and p1 close rounds without p2; p0 is out of reach, p1 loses all, and meets p2. A majority decided before."""
    apart = (
        Cut(at_s=11.0, a="p0", b="p2", for_s=1000.0),
        Cut(at_s=11.0, a="p1", b="p2", for_s=4.0),
        Cut(at_s=14.9, a="p0", b="p1", for_s=1000.0),
    )
    plan = FaultPlan(1, 3, 50, on_partition="wait", has_agent=False, faults=apart)
    mesh, _ = build_mesh(plan)
    mesh.run(15.0)
    stood = {name: node.machine.trainer.round_id for name, node in mesh.nodes.items()}
    assert stood["p0"] == stood["p1"] > stood["p2"]
    mesh.crash("p1")
    mesh.disks["p1"] = Disk()
    process = process_start(plan, "p1", incarnation, Disk(), mesh.now)
    mesh.add("p1", Role.TRAINER, build_machine(process), incarnation, train_s=0.2)
    mesh.run(40.0)  # judged after every event
    forks = {name: len(mesh.nodes[name].machine.trainer.lineage) for name in ("p1", "p2")}
    assert forks == {"p1": 2, "p2": 2}
