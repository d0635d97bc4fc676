"""Seconds, CPU seconds and memory to read a large CSV file, or many small ones: mdl, mdl row by row, a library alone.

    python -m benchmarks tables
    python -m benchmarks tables --files 100 --rows 7600 --channels 3
    python -m benchmarks tables --readers mdl blocks polars duckdb pyarrow pandas loadtxt
    python -m benchmarks tables --iso --rows 200000 --readers mdl mdl-rows

The file has a time in milliseconds, channels with 8 decimals and a label. mdl finds dialect, clock and units, checks
all values and leaves windows of 128 rows on the disk; "mdl-rows" is the same without blocks, line by line, and
"blocks" is pyarrow's part of it alone. A library gives its columns and nothing else; it has to be installed (pyarrow is
one of mdl's). Each runs in a process of its own, as
often as --runs says: the least is printed. Ratios are of CPU seconds, which say more than seconds on a machine that has
other work.
"""

from __future__ import annotations

import importlib
import itertools
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np

from benchmarks.tool.options import Namespace, Parser, add_runs
from benchmarks.tool.sheet import Sheet
from benchmarks.tool.table import show
from mdl.data.readers.csv_streams import CsvOptions, read_csv
from mdl.data.tables import rows
from mdl.data.tables.dialect import find_dialect

_LABELS = ("walk", "run", "sit", "stairs up")
_AT_ONCE = 20_000
_BEGAN = datetime(2026, 5, 4)


def write_table(file: Path, count: int, channels: int, seed: int, iso: bool = False) -> None:
    """Write rows of 50 Hz, and a label that changes every 1,900 rows. iso: the times are dates."""
    rng = np.random.default_rng(seed)
    with file.open("w") as out:
        out.write(
            ",".join(["time" if iso else "time_ms", *(f"s{place}" for place in range(channels)), "activity"]) + "\n"
        )
        for first in range(0, count, _AT_ONCE):
            values = rng.normal(0, 9, (min(_AT_ONCE, count - first), channels)).tolist()
            for row, numbers in enumerate(values, first):
                told = ",".join(f"{value:.8f}" for value in numbers)
                when = _BEGAN + timedelta(milliseconds=20 * row)
                time_told = when.isoformat(timespec="milliseconds") if iso else 1_700_000_000_000 + 20 * row
                out.write(f"{time_told},{told},{_LABELS[(seed + row // 1900) % 4]}\n")


def read_with_mdl(folder: Path) -> int:
    """Read all files as one data set; return the number of windows."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        data = read_csv(str(folder), CsvOptions(label="activity"), Path(scratch))
        return len(data.train) + len(data.test)


def read_by_rows(folder: Path) -> int:
    """Read likewise, with each block refused, so that its lines are parsed one by one."""
    vars(rows)["take_apart"] = lambda *_: None
    return read_with_mdl(folder)


def read_blocks(folder: Path) -> int:
    """Read all columns by pyarrow's part of mdl: dialect and blocks, without units, checks and windows."""
    count = 0
    for file in sorted(folder.iterdir()):
        dialect = find_dialect(file, ["activity"])
        columns = range(len(dialect.header))
        numbers = columns[1:-1] if dialect.header[0] == "time" else columns[:-1]
        count += sum(len(part) for part in rows.read_rows(file, dialect, columns, numbers=numbers))
    return count


def read_with(library: str) -> Callable[[Path], int]:
    """Return a function that has a library read each file into its columns, and returns the number of rows."""

    def read(folder: Path) -> int:
        module = importlib.import_module(_MODULES[library])
        count = 0
        for file in sorted(folder.iterdir()):
            if library in ("polars", "pandas"):
                count += len(module.read_csv(file))
            elif library == "pyarrow":
                count += sum(batch.num_rows for batch in module.open_csv(file))
            elif library == "duckdb":
                count += len(next(iter(module.sql(f"select * from read_csv('{file}')").fetchnumpy().values())))
            else:
                count += _load_text(file)
        return count

    return read


def _load_text(file: Path) -> int:
    """Read the numbers of a file by numpy alone, in blocks of lines."""
    count = 0
    with file.open() as lines:
        width = next(lines).count(",")
        while block := list(itertools.islice(lines, _AT_ONCE)):
            count += len(np.loadtxt(block, delimiter=",", usecols=range(width), comments=None, ndmin=2))
    return count


_MODULES = {"polars": "polars", "duckdb": "duckdb", "pyarrow": "pyarrow.csv", "pandas": "pandas", "loadtxt": "numpy"}
READERS: dict[str, Callable[[Path], int]] = {
    "mdl": read_with_mdl,
    "mdl-rows": read_by_rows,
    "blocks": read_blocks,
    **{name: read_with(name) for name in _MODULES},
}


def measure(reader: str, folder: str) -> None:
    """Print seconds, CPU seconds and the megabytes that reading added to this process."""
    if reader in _MODULES:
        importlib.import_module(_MODULES[reader])
    before, began, used = _peak_mb(), time.perf_counter(), time.process_time()
    READERS[reader](Path(folder))
    print(time.perf_counter() - began, time.process_time() - used, _peak_mb() - before)


def _peak_mb() -> float:
    # Bytes on macOS, else kilobytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << (20 if sys.platform == "darwin" else 10))


def add_options(parser: Parser) -> None:
    parser.add_argument("--rows", type=int, default=2_000_000, help="of each file")
    parser.add_argument("--channels", type=int, default=10)
    parser.add_argument("--files", type=int, default=1)
    parser.add_argument("--iso", action="store_true", help="times are dates, as 2026-05-04T12:00:00.020")
    add_runs(parser, 1)
    parser.add_argument("--readers", nargs="+", choices=list(READERS), default=["mdl", "mdl-rows", "loadtxt"])


def run(options: Namespace, sheet: Sheet) -> None:
    """Measure each reader in a process of its own."""
    with tempfile.TemporaryDirectory() as kept:
        folder = Path(kept) / "files"
        folder.mkdir()
        for number in range(options.files):
            write_table(folder / f"{number:04}.csv", options.rows, options.channels, number, options.iso)
        size_mb = sum(file.stat().st_size for file in folder.iterdir()) / 1e6
        rows: list[dict[str, float | str]] = []
        for reader in options.readers:
            code = f"from benchmarks.tables import measure; measure({reader!r}, {str(folder)!r})"
            command = [sys.executable, "-c", code]
            found = [subprocess.run(command, check=True, capture_output=True, text=True) for _ in range(options.runs)]
            least = [min(map(float, each)) for each in zip(*(told.stdout.split() for told in found), strict=True)]
            rows.append({"reader": reader, **dict(zip(("s", "cpu_s", "mb_more"), least, strict=True))})
        sheet.tell({"files": options.files, "rows": options.rows, "mb": round(size_mb), "readers": rows})
    first = float(rows[0]["cpu_s"])
    table = [
        (
            each["reader"],
            f"{each['s']:.2f}",
            f"{each['cpu_s']:.2f}",
            f"{each['mb_more']:.0f}",
            f"{float(each['cpu_s']) / first:.2f}",
        )
        for each in rows
    ]
    title = f"{options.files} files of {options.rows:,} rows x {options.channels + 2}, {size_mb:.0f} MB"
    show(("reader", "s", "CPU s", "MB more", f"CPU s of {rows[0]['reader']}"), table, title)
