"""Drawings of a round: a real one as it was recorded, a scenario as it is played under a policy."""

from __future__ import annotations

from dataclasses import dataclass

from mdl.config import Compress
from mdl.own import Own
from mdl.peers.view.schedule_source import Playable, Subject, as_playable
from mdl.scheduler.explain.chart import Chart, Exchanged, SeenDevice, chart_round
from mdl.scheduler.explain.device_table import ShownDevice, real_devices, scenario_devices
from mdl.scheduler.explain.recorded_round import chart_real, tell_lost
from mdl.scheduler.explain.watched_play import Bench, chart_play, check_policy, play_watched
from mdl.scheduler.policies.registry import SHARES_BY
from mdl.scheduler.study.play import play_segments


@dataclass(frozen=True)
class Drawing:
    """policy: the policy of the decisions, empty if unknown. estimates: the assumptions, in words.

    lost: the devices that a real round went on without, and why.
    """

    chart: Chart
    policy: str
    devices: tuple[ShownDevice, ...]
    is_recorded: bool
    estimates: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()


def draw_subject(subject: Subject, policy: str | Own | None, usual_policy: str) -> Drawing:
    """Draw a subject: played under `policy`; with None a real round as recorded, a scenario under `usual_policy`.

    A real round is played as the scenario that it is rebuilt as. Raises ConfigError if there is no such policy.
    """
    if policy is None and not isinstance(subject, Playable):
        return Drawing(chart_real(subject), subject.policy, real_devices(subject), True, lost=tell_lost(subject))
    scene, shown = as_playable(subject), policy or usual_policy
    chart = _chart(scene, shown)
    devices = scenario_devices(scene.scenario, scene.names, chart.exchange.owns if chart.exchange else None)
    return Drawing(chart, str(shown), devices, False, scene.estimates)


def _chart(scene: Playable, policy: str | Own) -> Chart:
    """Play the scene, with the alternatives to each decision, if the policy tells them."""
    check_policy(policy)
    if policy in SHARES_BY:
        return _chart_segments(scene, SHARES_BY[str(policy)])
    played, watched = play_watched(scene.scenario, Bench().policy(policy, scene.scenario), names=scene.names)
    lost = f", lost: {', '.join(scene.names[index] for index in played.lost)}" if played.lost else ""
    title = f"{scene.title}, policy {policy}: one holder after {played.makespan_s:.2f} s{lost}"
    return chart_play(title, scene.scenario, played, watched.notes, scene.names)


def _chart_segments(scene: Playable, compress: Compress) -> Chart:
    """Play the scene in segments. The only decision is each device's number of segments."""
    played, plan, start_s = play_segments(scene.scenario, scene.names, compress)
    end_s = played.makespan_s
    title = f"{scene.title}, in segments: everybody has the result after {end_s:.2f} s"
    exchange = None
    if plan:
        exchange = Exchanged(plan.reason, plan.owns, start_s, end_s, plan.bound_s)
    devices = [
        SeenDevice(name, each.ready_s, each.busy, index in played.lost)
        for index, (name, each) in enumerate(zip(scene.names, scene.scenario.devices, strict=True))
    ]
    return chart_round(title, devices, (), end_s, True, exchange)
