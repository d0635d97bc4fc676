"""Many rounds on the same devices: each round takes over the accumulated energy, like the agent. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from mdl.devices.scenario import Scenario
from mdl.scheduler.policies.chain import Policy
from mdl.scheduler.study.play import PlayedScenario, play
from mdl.sim.timing.scenario import draw_scenario


def draw_rounds(family: str, n: int, seed: int, rounds: int) -> list[Scenario]:
    """Draw scenarios of the same devices: links, merge speeds and classes are those of the first one. The end of
    training, the kinds of use and the busy periods are drawn anew. Seeds seed * rounds onwards."""
    drawn = [draw_scenario(family, n, seed * rounds + number) for number in range(rounds)]
    return [_on_devices_of(drawn[0], scenario) for scenario in drawn]


def play_rounds(scenarios: Iterable[Scenario], policy: Policy) -> list[PlayedScenario]:
    """Play rounds in turn; the energy_j of each starts from the energy that the devices had spent before."""
    played: list[PlayedScenario] = []
    for scenario in scenarios:
        spent_j = played[-1].energy_j if played else tuple(device.energy_j for device in scenario.devices)
        devices = tuple(
            msgspec.structs.replace(device, energy_j=energy_j)
            for device, energy_j in zip(scenario.devices, spent_j, strict=True)
        )
        played.append(play(msgspec.structs.replace(scenario, devices=devices), policy))
    return played


def _on_devices_of(first: Scenario, scenario: Scenario) -> Scenario:
    devices = tuple(
        msgspec.structs.replace(
            device,
            link_mb_s=given.link_mb_s,
            merge_mb_s=given.merge_mb_s,
            device_class=given.device_class,
        )
        for given, device in zip(first.devices, scenario.devices, strict=True)
    )
    return msgspec.structs.replace(scenario, devices=devices)
