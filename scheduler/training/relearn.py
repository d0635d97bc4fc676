"""Continuous environment learning (MDLdroid 3.3.3): goes on learning from a mesh's real rounds.

It learns in one small slot after another, in a process beside the mesh (`mdl.peers.edge.relearner`). After the last
slot the draft is judged on rounds that it has not learned from. Only if it is better there does it become the mesh's
policy; until then the old one decides.

In DIRECTORY: seen.jsonl (the rounds as scenarios), draft.safetensors (between two slots), chain.safetensors (the
policy, once it is better than the shipped one).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np

from mdl.devices.scenario import Scenario, load_scenarios
from mdl.scheduler.policies.learned import DRAFT, POLICY, SEEN, load_shipped
from mdl.scheduler.policies.qnet_numpy import (
    NumpyQ,
    UnfitPolicyError,
    Weights,
    load_weights,
    save_weights,
    set_aside,
)
from mdl.scheduler.study.judging import Cells, judge_network
from mdl.scheduler.training.train import train_on_labels
from mdl.sim.timing.scenario import vary_scenario

SLOTS = 24
_STEPS_A_SLOT = 3
# Every third round is kept for judging, each in this many variants.
_HELD_OUT = 3
_VARIANTS = 8
# A draft must be better by this share, or chance would change the policy again and again.
_BETTER = 0.005


@dataclass(frozen=True)
class Slot:
    """The result of a slot.

    before_s, after_s: mean time to one holder on the rounds held out, after the last slot.
    set_aside: a line for each policy file that this version could not use; it stays there under another name.
    """

    slot: int
    slots: int
    adopted: bool = False
    before_s: float | None = None
    after_s: float | None = None
    set_aside: tuple[str, ...] = ()


def run_slot(directory: Path, seed: int = 0, slots: int = SLOTS, steps: int = _STEPS_A_SLOT) -> Slot:
    """Learn for one slot; after the last one judge the draft, adopt or drop it.

    A draft or policy that was trained under other constants is set aside. Learning then begins anew from the policy
    that is left. Raises DataError for a file that cannot be read.
    """
    learned, held_out = divide(load_scenarios(directory / SEEN))
    draft = directory / DRAFT
    told: list[str] = []
    current = load_current(directory, told)
    network, done = current, 0
    if found := _load_or_set_aside(draft, told):
        network, metadata = found
        done = int(str(metadata.get("slots", 0)))
    network = train_on_labels(steps, seed + done, 0, start=network, seen=tuple(learned))
    done += 1
    if done < slots:
        save_weights(draft, network, {"slots": done})
        return Slot(done, slots, set_aside=tuple(told))
    before_s, after_s = _judge(current, held_out, seed), _judge(network, held_out, seed)
    adopted = after_s < (1.0 - _BETTER) * before_s
    if adopted:
        figures = {"held_out_before_s": before_s, "held_out_after_s": after_s, "rounds": len(learned)}
        save_weights(draft, network, {"command": "re-learned beside the mesh", "seed": seed, "evaluation": figures})
        draft.replace(directory / POLICY)
    else:
        draft.unlink(missing_ok=True)
    return Slot(done, slots, adopted, before_s, after_s, tuple(told))


def divide(seen: Sequence[Scenario]) -> tuple[list[Scenario], list[Scenario]]:
    """Split the rounds into some to learn from and some to judge by."""
    held_out = list(seen[::_HELD_OUT])
    learned = [scenario for index, scenario in enumerate(seen) if index % _HELD_OUT]
    return learned or held_out, held_out


def vary_cells(held_out: Sequence[Scenario], count: int, seed: int) -> Cells:
    """Return about so many variants of the rounds held out, as a cell to compare networks on."""
    rng = np.random.default_rng([seed, 0x4E1E])
    each = max(1, count // len(held_out))
    return {"recorded": [vary_scenario(scenario, rng) for scenario in held_out[:count] for _ in range(each)]}


def load_current(directory: Path, told: list[str]) -> Weights:
    """Load the mesh's policy: re-learned, or as shipped. told: gets a line if the re-learned one is set aside."""
    if found := _load_or_set_aside(directory / POLICY, told):
        return found[0]
    return load_shipped()[0]


def _load_or_set_aside(path: Path, told: list[str]) -> tuple[Weights, dict[str, object]] | None:
    if not path.exists():
        return None
    try:
        return load_weights(path)
    except UnfitPolicyError as error:
        told.append(f"{error}; it is set aside as {set_aside(path).name}")
        return None


def _judge(network: Weights, held_out: Sequence[Scenario], seed: int) -> float:
    rng = np.random.default_rng([seed, 0x4E1D])
    scenarios = [vary_scenario(scenario, rng) for scenario in held_out for _ in range(_VARIANTS)]
    return fmean(judge_network("policy", NumpyQ(network), scenarios).everywhere_s)
