"""The snapshot in the form that Prometheus reads: one table of all metrics. Their names stay (docs/reference.py)."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from mdl.peers.view.snapshot import SHOWN, DevicePart, RoundPoint, Snapshot

CONTENT_TYPE = CONTENT_TYPE_LATEST
# The value of each label; None is not told. The label of a metric without any is "".
_Values = Mapping[str, float | None]


@dataclass(frozen=True)
class MetricForm:
    """One metric. label: tells its values apart; "": it has one. meaning: in words. read: its values in a snapshot."""

    name: str
    label: str
    meaning: str
    read: Callable[[Snapshot], _Values]


def _of_devices(read: Callable[[DevicePart], float | None]) -> Callable[[Snapshot], _Values]:
    return lambda now: {name: read(part) for name, part in now.mesh.devices.items()}


def _of_last(read: Callable[[RoundPoint], float | None]) -> Callable[[Snapshot], _Values]:
    """Read one value of the last finished round."""
    return lambda now: {"": read(list(now.learning.rounds.values())[-1])} if now.learning.rounds else {}


def _of_numbers(key: str) -> Callable[[Snapshot], _Values]:
    """Read one measure of each number that the last finished round predicts."""

    def read(now: Snapshot) -> _Values:
        fits = list(now.learning.rounds.values())[-1].fits if now.learning.rounds else ()
        names = now.learning.classes or [str(place + 1) for place in range(len(fits))]
        return {name: getattr(fit, key) for name, fit in zip(names, fits, strict=False)}

    return read


def _device_fields() -> Iterator[MetricForm]:
    """Yield the metrics of a device's fields, with the words of their descriptions (`DevicePart`)."""
    told = dict(re.findall(r"^(\w+): ([^;.]+)", inspect.getdoc(DevicePart) or "", re.MULTILINE))
    for field, how in SHOWN.items():
        if how.metric:
            yield MetricForm(f"mdl_device_{how.metric}", "device", told[field], _of_devices(_scaled(field, how.scale)))


def _scaled(field: str, scale: float) -> Callable[[DevicePart], float | None]:
    def read(part: DevicePart) -> float | None:
        value = getattr(part, field)
        return None if value is None else value if scale == 1.0 else value * scale

    return read


def _is_up(part: DevicePart) -> float:
    return float(part.state not in ("silent", "refused", "revoked", "quarantined", "left"))


METRICS = (
    MetricForm("mdl_agent_up", "", "1 if an agent leads", lambda now: {"": bool(now.mesh.agent)}),
    MetricForm(
        "mdl_round", "", "the open round, or the last one", lambda now: {"": now.round.number if now.round else 0}
    ),
    MetricForm("mdl_devices", "state", "devices in each state", lambda now: Counter(_states(now))),
    MetricForm(
        "mdl_device_up",
        "device",
        "1 if it takes part, 0 if it is silent, refused, revoked, quarantined, or has left",
        _of_devices(_is_up),
    ),
    *_device_fields(),
    MetricForm("mdl_round_seconds", "phase", "seconds of the last finished round", lambda now: _seconds(now)),
    MetricForm("mdl_round_contributors", "", "devices with work in it", _of_last(lambda last: last.contributors)),
    MetricForm("mdl_round_bytes", "", "bytes of model values that it sent", _of_last(lambda last: last.bytes)),
    MetricForm("mdl_round_loss_nats", "", "mean training loss of its members", _of_last(lambda last: last.loss)),
    MetricForm("mdl_round_accuracy_ratio", "", "accuracy on the test windows", _of_last(lambda last: last.accuracy)),
    MetricForm("mdl_round_macro_f1_ratio", "", "mean F1 over classes or labels", _of_last(lambda last: last.macro_f1)),
    MetricForm(
        "mdl_round_micro_f1_ratio",
        "",
        "F1 over all labels",
        _of_last(lambda last: last.labelling.micro_f1 if last.labelling else None),
    ),
    MetricForm(
        "mdl_round_rmse", "number", "root of the mean squared error of a number, in its unit", _of_numbers("rmse")
    ),
    MetricForm("mdl_round_mae", "number", "likewise the mean absolute error", _of_numbers("mae")),
    MetricForm("mdl_round_r2", "number", "likewise the share of its variance that is explained", _of_numbers("r2")),
    MetricForm("mdl_cloud_version", "", "version that the cloud teaches", lambda now: _version(now)),
)


def _states(now: Snapshot) -> list[str]:
    return sorted(part.state for part in now.mesh.devices.values())


def _seconds(now: Snapshot) -> _Values:
    return list(now.learning.rounds.values())[-1].seconds if now.learning.rounds else {}


def _version(now: Snapshot) -> _Values:
    return {"": now.cloud.version} if now.cloud else {}


class _Metrics(Collector):  # type: ignore[misc]
    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        now = self._snapshot()
        for known in METRICS:
            family = GaugeMetricFamily(known.name, known.meaning, labels=[known.label] if known.label else [])
            for label, value in known.read(now).items():
                if value is not None:
                    family.add_metric([label] if known.label else [], float(value))
            if family.samples:
                yield family


def make_metrics(snapshot: Callable[[], Snapshot]) -> Callable[[], bytes]:
    """Return a function that gives the text of a scrape."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Metrics(snapshot))
    return lambda: generate_latest(registry)
