"""What a user may say about tables of sensor values: the options of csv:PATH."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from mdl.data.spec import split_names
from mdl.data.windows import FASTEST_HZ
from mdl.task import Targets

# A gap that is longer is none that a window of sensor data could bridge.
_MOST_GAP_S = 1e9


class CsvOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """label: column with the class. target: columns of numbers to predict instead, comma-separated; a window has their
    mean or their last value (target_of). labels: columns of 0 and 1, of which several may hold at once; so does a
    column `label` with label_sep, which parts the labels in a cell. A window has those that hold in most of it.

    columns, or channels: the channels (all others that are no times if empty).

    label and subject may also be `path` or `path:N` (the name of the first, or Nth, folder below PATH), or `file` (the
    file's name). names: of all columns, or of the channels in their order. map: THEIRS:OURS,...: what single columns
    are called. Names are found in whatever case, and without the unit behind them in brackets. classes: all classes in
    their order, so that a device may hold some of them. skip: labels (comma-separated) that mean "not labelled", as an
    empty one does.

    time: numbers, ISO dates, dates with dots or slashes, or clock times; found by its name where not given, `none`
    leaves it out. time_unit: instead of the one that its steps show. rate: Hz; with a time column each stretch is
    resampled to it, otherwise it only describes. A step in time above max_gap (s) ends a stretch; gaps: "split", or
    "interpolate:S", which fills what is not longer than S seconds. missing: what to do with empty cells and NaN.
    units: of the channels, where the header says none or a wrong one: one for all, or one for each; `-` is none.
    Known ones are brought to the unit that mdl keeps (m/s2, rad/s, uT, degC, hPa, mV, rad); acceleration: the unit that
    accelerations are brought to instead.

    window and step count samples; step is half a window where not given. split, seed: what is held out for testing.
    watch: new files of the folder join training between rounds; of all windows so many are kept; 0: it is read once.
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
        """What a window has."""
        return "numbers" if self.target else "labels" if self.labels or self.label_sep else "classes"

    @property
    def is_labelled(self) -> bool:
        """Whether it is said at all."""
        return bool(self.label or self.target or self.labels)

    @property
    def label_names(self) -> list[str]:
        """That a cell of `label_sep` may hold, in their order; else none."""
        return split_names(self.classes) if self.label_sep else []

    @property
    def fill_s(self) -> float | None:
        """Gaps of up to so many seconds are filled; None if gaps are split."""
        _, _, seconds = self.gaps.partition(":")
        return float(seconds) if seconds else None
