"""How a cloud and its clients learn (Colla 3.1 to 3.3), and the values that were measured for each kind of models.

docs/colla-notes.md says how they were chosen.
"""

from __future__ import annotations

from mdl.cloud.distillation import DistillSettings
from mdl.cloud.grouping import GROUP_COUNTS
from mdl.cloud.model_kinds import ModelKind, RecurrentKind
from mdl.config import Section
from mdl.errors import ConfigError


class TeachingSettings(Section, frozen=True):
    """How the cloud learns; `suggest_teaching` has values that were measured for a kind. Raises ConfigError.

    bootstrap: stage 1. compress: large to small, with the large model's probabilities. cloud_update: stage 4.
    compress_update_epochs: of compressing an updated teacher, which goes on from the small model it had.
    rows: the cloud learns from at most so many of its examples; update_rows: of them, with its pupils; compared_rows:
    and compares its pupils on so many. keep: the share of the pupils that teach, 1 for all. least_score: who teaches is
    right on at least so many of the cloud's examples, as a share of what the base model is right on.
    groups: whether pupils are grouped; group_counts: the K that are tried. pretrain_epochs: of the embeddings.
    """

    bootstrap: DistillSettings = DistillSettings(epochs=15, learning_rate=0.002, patience=4)
    compress: DistillSettings = DistillSettings(epochs=15, learning_rate=0.002, teacher_weight=0.8, patience=0)
    cloud_update: DistillSettings = DistillSettings(epochs=3, learning_rate=0.001, teacher_weight=0.5, patience=0)
    compress_update_epochs: int = 5
    rows: int = 3000
    update_rows: int = 1500
    compared_rows: int = 400
    keep: float = 1.0
    least_score: float = 0.0
    groups: bool = True
    group_counts: tuple[int, ...] = GROUP_COUNTS
    pretrain_epochs: int = 5

    def __post_init__(self) -> None:
        for key in ("rows", "update_rows", "compared_rows", "compress_update_epochs"):
            _require(getattr(self, key) >= 1, key, getattr(self, key), "at least 1")
        _require(0 < self.keep <= 1, "keep", self.keep, "above 0 and at most 1")
        _require(0 <= self.least_score <= 1, "least_score", self.least_score, "from 0 to 1")
        _require(self.pretrain_epochs >= 0, "pretrain_epochs", self.pretrain_epochs, "at least 0")
        _require(min(self.group_counts, default=2) >= 2, "group_counts", list(self.group_counts), "numbers from 2 on")


def suggest_teaching(kind: ModelKind) -> TeachingSettings:
    """For the cloud: what was measured for this kind."""
    return PLACES_TEACHING if isinstance(kind, RecurrentKind) else WINDOWS_TEACHING


def suggest_client(kind: ModelKind) -> DistillSettings:
    """For a client's update (stage 3): what was measured for this kind."""
    return PLACES_CLIENT if isinstance(kind, RecurrentKind) else WINDOWS_CLIENT


def _require(holds: bool, key: str, value: object, valid: str) -> None:
    if not holds:
        raise ConfigError(f"{key} is {value}: it must be {valid}")


# Below the checks that they have to pass.
PLACES_TEACHING = TeachingSettings(
    bootstrap=DistillSettings(epochs=8, batch_size=64, learning_rate=0.005, patience=2),
    compress=DistillSettings(epochs=40, batch_size=64, learning_rate=0.01, teacher_weight=0.8, patience=0),
    cloud_update=DistillSettings(epochs=3, batch_size=64, learning_rate=0.002, teacher_weight=0.9, patience=0),
    compress_update_epochs=12,
    update_rows=3000,
)
# A mesh whose devices have seen few activities each knows less than the cloud for many rounds.
WINDOWS_TEACHING = TeachingSettings(least_score=0.8)
PLACES_CLIENT = DistillSettings(epochs=12, batch_size=64, learning_rate=0.02, teacher_weight=0.3, patience=0)
WINDOWS_CLIENT = DistillSettings(epochs=5, learning_rate=0.001, teacher_weight=0.3, patience=0)
