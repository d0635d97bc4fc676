"""People who have written little: the weights of a group of like users (Colla's groups, for DeepType's last layer).

    python -m benchmarks deeptype_authors ... --only "tweets, words of the model alone" --models-out models
    python -m benchmarks deeptype_cold --global tweets.safetensors --blogs blogs_50.jsonl.gz --models models

The authors whose models are in the folder learned with the public model's words, so that what each learned is a change
of the same numbers. Each of them in turn is a newcomer, of whom --words words are known, the last before the test; the
others' changes are those of a cloud's users. The group is the --like of them whose change is most like what the
newcomer's own words alone teach (cosine). Each start is tested as it is, and after the newcomer's own words. The table
has top-3 efficiencies.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from benchmarks.deeptype_authors import SAME_WORDS, cut, file_name
from benchmarks.tool.options import Namespace, Parser
from benchmarks.tool.sheet import Sheet
from benchmarks.tool.table import show
from mdl.peers.deeptype.model.efficiency import evaluate_next_word
from mdl.peers.deeptype.model.model_file import load_next_word
from mdl.peers.deeptype.model.next_word import NextWordModel
from mdl.peers.deeptype.model.personalise import Techniques, begin_study, suit_rate
from mdl.peers.deeptype.model.study import StudySettings
from mdl.peers.deeptype.model.text import Text, encode
from mdl.peers.deeptype.train import read_sentences

_TECHNIQUES = Techniques(True, 0, 0, cache=True)


def add_options(parser: Parser) -> None:
    parser.add_argument("--global", dest="model", type=Path, required=True)
    parser.add_argument("--blogs", type=Path, required=True)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--after", type=int, default=60_000, help="words of an author before the test")
    parser.add_argument("--words", type=int, default=1_000, help="of a newcomer that are known")
    parser.add_argument("--like", type=int, default=2)
    parser.add_argument("--test", type=int, default=4_000)


def run(options: Namespace, sheet: Sheet) -> None:
    """Measure each author as a newcomer. Raises DataError."""
    torch.set_num_threads(1)
    sheet.tell(measure(options))
    rows: list[dict[str, float]] = sheet.figures["rows"]
    told = []
    for name in rows[0]:
        gain = median(row[name] / row["public"] - 1 for row in rows)
        better = sum(row[name] > row["public"] for row in rows)
        told.append((name, f"{median(row[name] for row in rows):.3f}", f"{gain:+.1%}", f"{better} of {len(rows)}"))
    show(("", "median", "gain", "above public"), told)


def measure(options: Namespace) -> dict[str, Any]:
    """Top-3 efficiencies, a row an author."""
    public, described = load_next_word(options.model)
    begun = last_layer(public)
    found = sorted(options.models.glob(f"*{file_name(SAME_WORDS)}.*.safetensors"))
    learned = {path.suffixes[-2][1:]: last_layer(load_next_word(path)[0]) - begun for path in found}
    rows = []
    for name in learned:
        said = read_sentences(options.blogs, name, options.after + options.test)
        mine, held_out = cut(said, options.after)
        text, test = (encode(part, described.table) for part in (cut(mine, options.after - options.words)[1], held_out))
        own = last_layer(_learn(options, begun, text)) - begun
        others = [change for key, change in learned.items() if key != name]
        others.sort(key=lambda change: -_likeness(own, change))
        starts = {"public": begun}
        for label, group in (
            (f"all {len(others)} others", others),
            (f"the {options.like} most alike", others[: options.like]),
        ):
            starts[label] = begun + torch.stack(group).mean(dim=0)
        row = {}
        for start, values in starts.items():
            row[start] = evaluate_next_word(_with(options, values), test).efficiency
            row[f"{start}, own words"] = evaluate_next_word(_learn(options, values, text), test).efficiency
        rows.append(row)
        print(f"{name}: " + ", ".join(f"{key} {value:.3f}" for key, value in row.items()), file=sys.stderr)
    return {"words": options.words, "like": options.like, "rows": rows}


def last_layer(model: NextWordModel) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.output.parameters()])


def _with(options: Namespace, values: Tensor) -> NextWordModel:
    model = load_next_word(options.model)[0]
    torch.nn.utils.vector_to_parameters(values, model.output.parameters())
    return model


def _learn(options: Namespace, values: Tensor, text: Text) -> NextWordModel:
    model = _with(options, values)
    begin_study(model, text, _TECHNIQUES, suit_rate(StudySettings(1, 16, learning_rate=0.0), model)).run()
    return model


def _likeness(one: Tensor, other: Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(one, other, dim=0))
