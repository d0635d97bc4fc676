"""Settings of a cloud and its clients (Colla 3.1 to 3.3): the paper's, and those measured for each kind of models.

docs/colla-notes.md explains the choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from mdl.cloud.distillation import DistillSettings
from mdl.cloud.grouping import GROUP_COUNTS
from mdl.cloud.model_kinds import ModelKind, RecurrentKind
from mdl.errors import ConfigError
from mdl.section import Section


class TeachingSettings(Section, frozen=True):
    """The settings of the cloud's learning; a preset has values for a kind. Raises ConfigError.

    bootstrap: stage 1. compress: large to small, with the large model's probabilities. cloud_update: stage 4.
    compress_update_epochs: of compressing an updated teacher, starting from its former small model.
    rows: the most examples that the cloud learns from; update_rows: the most of them with its pupils; compared_rows:
    the most for comparing pupils. keep: the share of the pupils that teach, 1 for all. least_score: the least score of
    a teaching pupil, as a share of the base model's score on the cloud's examples.
    groups: group the pupils; group_counts: the K that are tried. pretrain_steps: of the embedding of places.
    """

    bootstrap: DistillSettings = DistillSettings(epochs=15, learning_rate=0.002, patience=4)
    compress: DistillSettings = DistillSettings(epochs=15, learning_rate=0.002, label_weight=0.2, patience=0)
    cloud_update: DistillSettings = DistillSettings(epochs=3, learning_rate=0.001, patience=0)
    compress_update_epochs: int = 5
    rows: int = 3000
    update_rows: int = 1500
    compared_rows: int = 400
    keep: float = 1.0
    least_score: float = 0.0
    groups: bool = True
    group_counts: tuple[int, ...] = GROUP_COUNTS
    pretrain_steps: int = 100

    def __post_init__(self) -> None:
        for key in ("rows", "update_rows", "compared_rows", "compress_update_epochs"):
            _require(getattr(self, key) >= 1, key, getattr(self, key), "at least 1")
        _require(0 < self.keep <= 1, "keep", self.keep, "above 0 and at most 1")
        _require(0 <= self.least_score <= 1, "least_score", self.least_score, "from 0 to 1")
        _require(self.pretrain_steps >= 0, "pretrain_steps", self.pretrain_steps, "at least 0")
        _require(min(self.group_counts, default=2) >= 2, "group_counts", list(self.group_counts), "numbers from 2 on")


class Preset(Section, frozen=True):
    """teaching: the cloud. client: a device's update (stage 3), in the mode called `update` (`UPDATE_MODES`)."""

    teaching: TeachingSettings
    client: DistillSettings
    update: str


def suggest(kind: ModelKind, preset: str) -> Preset:
    """Return the settings of this name for this kind. Raises ConfigError that names the valid ones."""
    presets = PLACES_PRESETS if isinstance(kind, RecurrentKind) else WINDOWS_PRESETS
    if preset not in presets:
        raise ConfigError(f"cloud.preset is {preset[:40]!r}: for this data expected one of {', '.join(presets)}")
    return presets[preset]


def _require(holds: bool, key: str, value: object, valid: str) -> None:
    if not holds:
        raise ConfigError(f"{key} is {value}: it must be {valid}")


# The presets stand below the checks that they have to pass.
# 4.2: Adam 0.1, batches of 32, lambda 0.5, an end after 20 epochs without a better validation loss. The cap is ours,
# and so is the use of all of the cloud's data in stage 4.
_PAPER = DistillSettings(label_weight=0.5, learning_rate=0.1, batch_size=32, epochs=500, patience=20)
_EVERYTHING = 1_000_000
PLACES_PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "measured": Preset(
            TeachingSettings(
                bootstrap=DistillSettings(epochs=20, batch_size=64, learning_rate=0.005, patience=4),
                compress=DistillSettings(epochs=40, batch_size=64, learning_rate=0.01, patience=8),
                cloud_update=DistillSettings(epochs=5, batch_size=64, learning_rate=0.002, patience=2),
                compress_update_epochs=12,
                update_rows=3000,
            ),
            DistillSettings(epochs=60, batch_size=32, learning_rate=0.02, patience=20),
            "customised-whole",
        ),
        "paper": Preset(
            TeachingSettings(
                bootstrap=_PAPER,
                compress=_PAPER,
                cloud_update=_PAPER,
                compress_update_epochs=_PAPER.epochs,
                rows=_EVERYTHING,
                update_rows=_EVERYTHING,
            ),
            _PAPER,
            "customisation",
        ),
    }
)
WINDOWS_PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        # In a mesh of devices with few activities each device knows less than the cloud for many rounds.
        "measured": Preset(
            TeachingSettings(least_score=0.8), DistillSettings(epochs=5, learning_rate=0.001, patience=0), "same-whole"
        ),
    }
)
