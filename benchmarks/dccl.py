"""DCCL (KDD 2021) made again: its tables and figures, with the paper's figures and paired intervals beside ours.

    python -m benchmarks dccl table2 --data 'movielens:ml-1m?least=1' --seeds 0 1 2 --keep learned
    python -m benchmarks dccl figure5 --data movielens:ml-latest-small.zip --seeds 0 1 2 --plot rounds.svg

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

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import torch

from benchmarks.recommend.costs import measure_costs, measure_memory, plot_memory
from benchmarks.recommend.figures import figure4, figure7, plot_groups, plot_vectors
from benchmarks.recommend.learning import Options
from benchmarks.recommend.report import PAPER, show, show_paper
from benchmarks.recommend.rounds import figure5, plot_rounds
from benchmarks.recommend.tables import FAIR, STALE, generated, table2, table3, table4, table5
from benchmarks.tool.options import Namespace, Parser, add_data, add_seeds
from benchmarks.tool.sheet import Sheet
from mdl.errors import ConfigError
from mdl.peers.dccl.model.din import DinSettings
from mdl.peers.dccl.model.readers import read_interactions

# What each finds, and which of its rows the others are compared with.
TABLES = {
    "table2": (table2, ("DIN", FAIR)),
    "table3": (table3, (STALE, FAIR)),
    "table4": (table4, (STALE, FAIR)),
    "table5": (table5, ("DIN, embeddings of 32",)),
    "generated": (generated, (STALE, FAIR)),
}


def add_options(parser: Parser) -> None:
    parser.add_argument("what", choices=(*TABLES, "figure4", "figure5", "figure7", "memory", "costs"))
    add_data(parser, "", "movielens:PATH?least=1, or csv:PATH")
    add_seeds(parser, (0,))
    parser.add_argument("--epochs", type=int, default=10, help="passes of each first learning, at most")
    parser.add_argument("--passes", type=int, default=1, help="of the cloud over the second halves")
    parser.add_argument("--no-user", action="store_true", help="DIN without the user's own embedding")
    parser.add_argument("--steps", type=int, default=20, help="of Eq. 3 on each device")
    parser.add_argument("--rate", type=float, default=0.02, help="of Eq. 3")
    parser.add_argument("--beta", type=float, default=0.01)
    parser.add_argument("--genres", type=Path, help="movies.dat, of figure7")
    parser.add_argument("--keep", type=Path, help="folder of what was learned, which is used again")
    parser.add_argument("--plot", type=Path, help="picture of a figure, or of memory: PNG or SVG")


def run(arguments: Namespace, sheet: Sheet) -> None:
    """Make the table or figure. Raises ConfigError, DataError."""
    if arguments.what == "figure7" and not arguments.genres:
        raise ConfigError("figure7 needs --genres PATH of movies.dat")
    torch.set_num_threads(1)
    if arguments.what == "costs":
        found: Any = measure_costs()
    elif arguments.what == "memory":
        found = measure_memory()
        plot_memory(found, arguments.plot)
    else:
        found = _with_data(arguments)
    sheet.tell({arguments.what: found})


def _with_data(arguments: Namespace) -> Any:
    data = read_interactions(arguments.data)
    seeds = arguments.seeds
    options = Options(
        DinSettings(dropout=0.1, has_user=not arguments.no_user),
        *(arguments.epochs, arguments.steps, arguments.rate, arguments.beta, arguments.keep, arguments.passes),
    )
    print(f"{len(data.users)} users, {len(data.titles)} items, {len(data.items)} interactions, seeds {seeds}")
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
