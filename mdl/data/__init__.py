"""Data: from a spec such as "uci-har:PATH" to windows, and their split among devices."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mdl.data.describe import describe_data, measure_channels
    from mdl.data.readers.catalogue import default_cache_dir
    from mdl.data.readers.load import load_data, read_data
    from mdl.data.split import Shard, donated_part, parse_shard, private_part, shard_test, split_windows
    from mdl.data.windows import DataSet, Windows, check_data, make_windows, take_windows

__all__ = [
    "DataSet",
    "Shard",
    "Windows",
    "check_data",
    "default_cache_dir",
    "describe_data",
    "donated_part",
    "load_data",
    "make_windows",
    "measure_channels",
    "parse_shard",
    "private_part",
    "read_data",
    "shard_test",
    "split_windows",
    "take_windows",
]


def __getattr__(name: str) -> Any:
    # Imported late, because it imports numpy: taking a spec apart, and `mdl --help`, do without.
    if name in __all__:
        from mdl.data.readers import load

        return getattr(load, name)
    raise AttributeError(f"module 'mdl.data' has no attribute {name!r}")
