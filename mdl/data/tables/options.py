"""A user's choices for tables of sensor values: the options of csv:PATH."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from mdl.data.spec import split_names
from mdl.data.windows import FASTEST_HZ
from mdl.task import Targets

# No window of sensor data could bridge a longer gap.
_MOST_GAP_S = 1e9


class CsvOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """label: column with the class. target: columns of numbers to predict instead, comma-separated; a window has their
    mean or their last value (target_of). labels: columns of 0 and 1, of which several may hold at once. Likewise a
    column `label` with label_sep, which separates the labels in a cell. A window has the labels that hold in most of
    it.

    columns, or channels: the channels (all others that are no times if empty).

    label and subject may also be `path` or `path:N` (the name of the first, or Nth, folder below PATH), or `file` (the
    file's name). names: of all columns, or of the channels in their order. map: THEIRS:OURS,...: new names of single
    columns. Names match in any case, and without the unit behind them in brackets. classes: all classes in their order,
    so that a device may hold some of them. skip: labels (comma-separated) that mean "not labelled", like an empty one.

    time: numbers, ISO dates, dates with dots or slashes, or clock times; found by its name if not given, `none` leaves
    it out. time_unit: replaces the one that its steps show. rate: Hz; with a time column each stretch is resampled to
    it, otherwise it only describes. A step in time above max_gap (s) ends a stretch; gaps: "split", or "interpolate:S",
    which fills gaps of at most S seconds. missing: treatment of empty cells and NaN. units: of the channels, if the
    header has none or a wrong one: one for all, or one for each; `-` is none. Known ones are brought to the unit that
    mdl keeps (m/s2, rad/s, uT, degC, hPa, mV, rad); acceleration: the unit for accelerations instead.

    window and step count samples; step is half a window if not given. split, seed: the choice of test windows.
    watch: new files of the folder join training between rounds; so many of all windows are kept; 0: it is read once.
    """

    label: str = ""
    target: str = ""
    target_of: Literal["mean", "last"] = "mean"
    labels: str = ""
    label_sep: Annotated[str, msgspec.Meta(max_length=8)] = ""
    columns: str = ""
    channels: str = ""
    names: str = ""
    map: str = ""
    classes: str = ""
    subject: str = ""
    time: str = ""
    time_unit: Literal["s", "ms", "us", "ns"] | None = None
    rate: Annotated[float, msgspec.Meta(gt=0, le=FASTEST_HZ)] | None = None
    max_gap: Annotated[float, msgspec.Meta(gt=0, le=_MOST_GAP_S)] | None = None
    gaps: Annotated[str, msgspec.Meta(pattern=r"^(split|interpolate:[0-9]{1,9}(\.[0-9]{1,9})?)$")] = "split"
    missing: Literal["refuse", "drop", "interpolate"] = "refuse"
    units: str = ""
    acceleration: Literal["g", "m/s2"] | None = None
    window: Annotated[int, msgspec.Meta(ge=2, le=1 << 20)] = 128
    step: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)] | None = None
    split: Literal["auto", "subject", "recording", "time"] = "auto"
    skip: str = ""
    watch: Annotated[int, msgspec.Meta(ge=0, le=1 << 24)] = 0
    seed: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)] = 0

    @property
    def targets(self) -> Targets:
        """The kind of a window's targets."""
        return "numbers" if self.target else "labels" if self.labels or self.label_sep else "classes"

    @property
    def is_labelled(self) -> bool:
        """True if the options name a label or target at all."""
        return bool(self.label or self.target or self.labels)

    @property
    def label_names(self) -> list[str]:
        """The labels that a cell of `label_sep` may hold, in their order; else none."""
        return split_names(self.classes) if self.label_sep else []

    @property
    def fill_s(self) -> float | None:
        """The longest gap to fill, in seconds; None if gaps are split."""
        _, _, seconds = self.gaps.partition(":")
        return float(seconds) if seconds else None
