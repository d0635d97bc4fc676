"""The snapshot in the form that Prometheus reads. Names are documented in docs/api.md, and stay."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from mdl.peers.view.snapshot import DevicePart, RoundPoint, Snapshot

CONTENT_TYPE = CONTENT_TYPE_LATEST
# For each device: the metric, its meaning, and its value.
_OF_DEVICES: tuple[tuple[str, str, Callable[[DevicePart], float | None]], ...] = (
    ("mdl_device_up", "1 if the device takes part, 0 if it is silent, shut out or has left", lambda it: _is_up(it)),
    ("mdl_device_round", "Round of its model", lambda it: it.round),
    ("mdl_device_loss_nats", "Loss of its last training", lambda it: it.loss),
    ("mdl_device_cpu_ratio", "Share of its processor that other programs take", lambda it: _share(it.cpu_percent)),
    ("mdl_device_memory_free_bytes", "Memory that a program may take", lambda it: it.free_memory_bytes),
    ("mdl_device_battery_ratio", "Charge of its battery", lambda it: _share(it.battery_percent)),
    ("mdl_device_charging", "1 on its charger", lambda it: it.charging),
    ("mdl_device_in_use", "1 while somebody uses it", lambda it: it.in_use),
    ("mdl_device_temperature_celsius", "Temperature of its warmest sensor", lambda it: it.temperature_c),
    ("mdl_device_link_bytes_per_second", "Speed of its link, by its transfers", lambda it: _bytes(it.link_mb_s)),
    ("mdl_device_merge_bytes_per_second", "Speed of its merges", lambda it: _bytes(it.merge_mb_s)),
)


class _Metrics(Collector):  # type: ignore[misc]
    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        now = self._snapshot()
        yield GaugeMetricFamily("mdl_agent_up", "1 if an agent leads", value=float(bool(now.mesh.agent)))
        yield GaugeMetricFamily(
            "mdl_round", "The open round, or the last one", value=now.round.number if now.round else 0
        )
        yield _of_devices(now)
        for name, meaning, read in _OF_DEVICES:
            family = GaugeMetricFamily(name, meaning, labels=["device"])
            for device, part in now.mesh.devices.items():
                if (found := read(part)) is not None:
                    family.add_metric([device], float(found))
            yield family
        yield from _of_rounds(now)
        if now.cloud:
            yield GaugeMetricFamily("mdl_cloud_version", "Version that the cloud teaches", value=now.cloud.version)


def make_metrics(snapshot: Callable[[], Snapshot]) -> Callable[[], bytes]:
    """Return a function that gives the text of a scrape."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Metrics(snapshot))
    return lambda: generate_latest(registry)


def _of_devices(now: Snapshot) -> Metric:
    states = [part.state for part in now.mesh.devices.values()]
    family = GaugeMetricFamily("mdl_devices", "Devices in each state", labels=["state"])
    for state in sorted(set(states)):
        family.add_metric([state], states.count(state))
    return family


def _of_rounds(now: Snapshot) -> Iterator[Metric]:
    """Yield the metrics of the last finished round."""
    if not now.learning.rounds:
        return
    last = list(now.learning.rounds.values())[-1]
    seconds = GaugeMetricFamily("mdl_round_seconds", "Seconds of the last finished round, by phase", labels=["phase"])
    for phase, value in last.seconds.items():
        seconds.add_metric([phase], value)
    yield seconds
    yield GaugeMetricFamily(
        "mdl_round_contributors", "Devices with work in the last finished round", value=last.contributors
    )
    yield GaugeMetricFamily("mdl_round_bytes", "Bytes of model values that it sent", value=last.bytes)
    for name, meaning, told in (
        ("mdl_round_loss_nats", "Mean training loss of its members", last.loss),
        ("mdl_round_accuracy_ratio", "Accuracy of its model on the test windows", last.accuracy),
        ("mdl_round_macro_f1_ratio", "Mean F1 over classes or labels on the test windows", last.macro_f1),
        (
            "mdl_round_micro_f1_ratio",
            "F1 over all labels on the test windows",
            last.labelling and last.labelling.micro_f1,
        ),
    ):
        if told is not None:
            yield GaugeMetricFamily(name, meaning, value=told)
    yield from _of_numbers(last, now.learning.classes)


def _of_numbers(last: RoundPoint, names: tuple[str, ...]) -> Iterator[Metric]:
    """Yield the metrics of the predicted numbers."""
    for key, meaning in (
        ("rmse", "Root of the mean squared error"),
        ("mae", "Mean absolute error"),
        ("r2", "R squared"),
    ):
        family = GaugeMetricFamily(f"mdl_round_{key}", f"{meaning} of each number", labels=["number"])
        for place, fit in enumerate(last.fits):
            if (value := getattr(fit, key)) is not None:
                family.add_metric([names[place] if names else str(place + 1)], value)
        if family.samples:
            yield family


def _is_up(part: DevicePart) -> float:
    return float(part.state not in ("silent", "refused", "revoked", "quarantined", "left"))


def _share(percent: float | None) -> float | None:
    return None if percent is None else percent / 100.0


def _bytes(mb_s: float | None) -> float | None:
    return None if mb_s is None else mb_s * 1e6
