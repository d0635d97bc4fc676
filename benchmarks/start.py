"""Seconds from `mdl up` to its first finished round, beside those of `import torch` alone, in turns.

python benchmarks/start.py [--peers 2 4] [--runs 3]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from mdl.peers.view.tail import RoundReader

# Longer than any start takes; then the run has failed.
_PATIENCE_S = 120.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=int, nargs="+", default=[2, 4], help="sizes of the mesh (default: 2 4)")
    parser.add_argument("--runs", type=int, default=3, help="of each (default: 3)")
    options = parser.parse_args()
    imports: list[float] = []
    starts: dict[int, list[float]] = {peers: [] for peers in options.peers}
    for _ in range(options.runs):
        imports.append(_import_torch())
        for peers in options.peers:
            starts[peers].append(_start(peers))
    torch_s = median(imports)
    print(f"import torch: {_tell(imports)}")
    for peers, seconds in starts.items():
        print(f"mdl up -n {peers}: {_tell(seconds)}, {median(seconds) / torch_s:.1f} times that of torch")


def _tell(seconds: list[float]) -> str:
    return f"{median(seconds):.2f} s ({min(seconds):.2f} to {max(seconds):.2f})"


def _import_torch() -> float:
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.monotonic() - began


def _start(peers: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        out, began = Path(folder) / "run", time.monotonic()
        words = [sys.executable, "-m", "mdl", "up", "-n", str(peers), "--epochs", "1", "--out", str(out)]
        reader = RoundReader(out)
        with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            while not reader.new():
                if process.poll() is not None or time.monotonic() - began > _PATIENCE_S:
                    raise SystemExit(f"{' '.join(words)} closed no round")
                try:
                    process.wait(0.02)
                except subprocess.TimeoutExpired:
                    continue
            seconds = time.monotonic() - began
            process.terminate()
    return seconds


if __name__ == "__main__":
    main()
