"""The functions that `mdl.data` hands on."""

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
