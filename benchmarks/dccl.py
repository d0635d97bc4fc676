"""DCCL (KDD 2021) made again: its tables and figures, with the paper's figures and paired intervals beside ours.

    python benchmarks/dccl.py table2 --data 'movielens:ml-1m?least=1' --seeds 3 --keep learned
    python benchmarks/dccl.py figure5 --data movielens:ml-latest-small.zip --seeds 3 --plot rounds.svg

table2     MF, FM, NeuMF, DeepFM, SASRec, DIN and DCCL after one round
table3     stale DIN, DCCL-e, DCCL-m, the fair DIN, and controls: the mean of all moves, other people's vectors
table4     patches at one junction alone
table5     DIN of the paper's sizes
generated  a vector that the cloud makes of the last interactions, in place of a learned one (DUET's idea)
figure4    macro-AUC of 20 groups of users by activity
figure5    the second half of a log by the calendar, in 1 to 8 rounds
figure7    the devices' vectors in the plane (t-SNE), and whether neighbours like the same genre
memory     what distilling 100 to 10,000 devices' vectors takes
costs      seconds of a device's update and of a recommendation

DIN learns the first half of each user's sequence (stale); devices learn vectors from the second (DCCL-e); the cloud
learns the second half without vectors (fair) and with them (DCCL-m). All are ranked on each user's last item among 100
negatives.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when called by its path

from benchmarks.recommend.costs import measure_costs, measure_memory, plot_memory
from benchmarks.recommend.figures import figure4, figure7, plot_groups, plot_vectors
from benchmarks.recommend.learning import Options
from benchmarks.recommend.report import PAPER, show, show_paper
from benchmarks.recommend.rounds import figure5, plot_rounds
from benchmarks.recommend.tables import FAIR, STALE, generated, table2, table3, table4, table5
from mdl.recommend.din import DinSettings
from mdl.recommend.readers import read_interactions

# What each finds, and which of its rows the others are compared with.
TABLES = {
    "table2": (table2, ("DIN", FAIR)),
    "table3": (table3, (STALE, FAIR)),
    "table4": (table4, (STALE, FAIR)),
    "table5": (table5, ("DIN, embeddings of 32",)),
    "generated": (generated, (STALE, FAIR)),
}


def main() -> None:
    arguments = _parse()
    torch.set_num_threads(1)
    found: Any = None
    if arguments.what == "costs":
        found = measure_costs()
    elif arguments.what == "memory":
        found = measure_memory()
        plot_memory(found, arguments.plot)
    else:
        found = _with_data(arguments)
    told = json.dumps(found)
    if arguments.json:
        arguments.json.write_text(told + "\n")


def _with_data(arguments: argparse.Namespace) -> Any:
    data = read_interactions(arguments.data)
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    options = Options(
        DinSettings(dropout=0.1, has_user=not arguments.no_user),
        *(arguments.epochs, arguments.steps, arguments.rate, arguments.beta, arguments.keep, arguments.passes),
    )
    print(f"{len(data.users)} users, {len(data.titles)} items, {len(data.items)} interactions, seeds {list(seeds)}")
    if arguments.what in TABLES:
        find, over = TABLES[arguments.what]
        found = show([find(data, seed, options) for seed in seeds], over)
        show_paper(tuple(PAPER) if arguments.what == "table2" else ("DIN", "DCCL"))
        return found
    if arguments.what == "figure4":
        found = figure4(data, seeds, options)
        plot_groups(found, arguments.plot)
    elif arguments.what == "figure5":
        # No user by number: most of them come in the later half.
        din = msgspec.structs.replace(options.din, has_user=False)
        found = figure5(data, seeds, replace(options, din=din))
        plot_rounds(found, arguments.plot)
    else:
        found, picture = figure7(data, seeds[0], options, arguments.genres)
        plot_vectors(picture, arguments.plot)
    return found


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=(*TABLES, "figure4", "figure5", "figure7", "memory", "costs"))
    parser.add_argument("--data", default="", help="movielens:PATH?least=1, or csv:PATH")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=10, help="passes of each first learning, at most")
    parser.add_argument("--passes", type=int, default=1, help="of the cloud over the second halves")
    parser.add_argument("--no-user", action="store_true", help="DIN without the user's own embedding")
    parser.add_argument("--steps", type=int, default=20, help="of Eq. 3 on each device")
    parser.add_argument("--rate", type=float, default=0.02, help="of Eq. 3")
    parser.add_argument("--beta", type=float, default=0.01)
    parser.add_argument("--genres", type=Path, help="movies.dat, of figure7")
    parser.add_argument("--keep", type=Path, help="folder of what was learned, which is used again")
    parser.add_argument("--plot", type=Path, help="picture of a figure, or of memory: PNG or SVG")
    parser.add_argument("--json", type=Path, help="write what was found there")
    arguments = parser.parse_args()
    if arguments.what == "figure7" and not arguments.genres:
        parser.error("figure7 needs --genres PATH of movies.dat")
    return arguments


if __name__ == "__main__":
    main()
