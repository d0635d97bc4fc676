"""The public data sets that `mdl data get` knows: their publishers, digests and local places.

Neither publisher states a checksum. For UCI HAR several public projects independently recorded the digest of the file
behind the official address; for sEMG one project did, and others confirm the size. For another file the user can give
--sha256, or hand over a file with --from, which is checked by its content.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from mdl.data.readers.semg import SemgOptions, read_semg
from mdl.data.readers.uci_har import UciHarOptions, read_uci_har
from mdl.data.spec import describe_choices
from mdl.data.windows import check_data
from mdl.errors import ConfigError, DataError


class PublicSet(msgspec.Struct, frozen=True):
    """A public data set; name is also the source in a data spec."""

    name: str
    title: str
    page: str
    url: str
    sha256: str
    size_bytes: int
    licence: str
    cite: str


PUBLIC_SETS = (
    PublicSet(
        name="uci-har",
        title="Human Activity Recognition Using Smartphones",
        page="https://archive.ics.uci.edu/dataset/240/human+activity+recognition+using+smartphones",
        url="https://archive.ics.uci.edu/static/public/240/human+activity+recognition+using+smartphones.zip",
        sha256="c00b803081a5c797cd5e4b83700a9810b38d53d9d84e01917e090e1fdbc81031",
        size_bytes=61_005_872,
        licence="CC BY 4.0 (its own README: no commercial use)",
        cite="Anguita et al., A Public Domain Dataset for Human Activity Recognition Using Smartphones, ESANN 2013",
    ),
    PublicSet(
        name="semg",
        title="EMG data for gestures",
        page="https://archive.ics.uci.edu/dataset/481/emg+data+for+gestures",
        url="https://archive.ics.uci.edu/static/public/481/emg+data+for+gestures.zip",
        sha256="e82247b6478e5a1c5ad621c1f2cc1bb878547c51f01f4e6226abb2a4819ce4ee",
        size_bytes=17_699_840,
        licence="CC BY 4.0",
        cite="Lobov et al., Latent Factors Limiting the Performance of sEMG-Interfaces, Sensors 2018, 18(4):1122",
    ),
)


def find_public_set(name: str) -> PublicSet:
    """Return the known set of this name. Raises ConfigError with the closest and all names."""
    for known in PUBLIC_SETS:
        if known.name == name:
            return known
    raise ConfigError(
        f"data set {name!r} is not known; {describe_choices(name, [known.name for known in PUBLIC_SETS])}"
    )


def data_home() -> Path:
    """Return the folder in which `mdl data get` keeps data sets of this user."""
    import platformdirs

    return Path(platformdirs.user_data_dir("mdl")) / "data"


def default_cache_dir() -> Path:
    """Return the folder for parsed windows of this user; safe to delete at any time."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("mdl")) / "windows"


def find_installed(name: str) -> Path:
    """Return the file that `mdl data get NAME` kept. Raises DataError saying how to get it."""
    for ending in (".zip", ".npz"):
        if (file := data_home() / f"{name}{ending}").is_file():
            return file
    raise DataError(f"{name}: not on this machine; `mdl data get {name}`, or say where it is: {name}:PATH")


def check_content(name: str, file: Path) -> None:
    """Read the whole file as the set of this name. Raises DataError if it is something else, or incomplete."""
    check_data(read_uci_har(file, UciHarOptions()) if name == "uci-har" else read_semg(file, SemgOptions()), str(file))
