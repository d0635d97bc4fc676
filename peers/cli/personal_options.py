"""Options that commands of `mdl personal` share, and the settings made of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from mdl.config import LARGEST_SEED, MANY
from mdl.errors import UnfinishedError
from mdl.peers.cli.options import check_choice, finite, print_json, tell

if TYPE_CHECKING:
    from mdl.peers.personal.train import TrainingEnded
    from mdl.personal.study import StudySettings
    from mdl.personal.words.personalise import Batching

BATCHINGS = ("shared", "exact", "buckets", "longest", "padded")
_TEXT = "Read .txt or .jsonl (a file or folder, packed or not), a .zip of .txt, or an exported chat: CHAT?me=YOUR NAME."
Corpus = Annotated[Path, typer.Argument(help=_TEXT)]
Home = Annotated[
    Path | None, typer.Option("--out", help="Use this person's directory; by default one below the state directory.")
]
Author = Annotated[str, typer.Option(help="Read only this author's words, in a chat or a .jsonl that names authors.")]
Limit = Annotated[int, typer.Option(help="Read so many words at most; 0 reads all.", min=0, max=MANY)]
Epochs = Annotated[int, typer.Option(help="Pass so many times over the text.", min=1, max=MANY)]
Rate = Annotated[float, typer.Option(help="Set the learning rate.", min=0.0, max=1e3, callback=finite)]
_SUITS = "Set the learning rate; 0 suits the optimizer and the model."
OwnRate = Annotated[float, typer.Option("--rate", help=_SUITS, min=0.0, max=1e3, callback=finite)]
Optimizer = Annotated[str, typer.Option(help="Train by sgd or adam.")]
Top = Annotated[int, typer.Option(help="Show so many suggestions.", min=1, max=100)]
SeedOf = Annotated[
    int, typer.Option("--seed", help="Draw every random choice from this seed.", min=0, max=LARGEST_SEED)
]
Anew = Annotated[bool, typer.Option("--fresh", help="Drop an interrupted training, and begin anew.")]
Halved = Annotated[bool, typer.Option("--bfloat16", help="Compute in bfloat16: faster where the processor has it.")]
Cached = Annotated[
    bool, typer.Option("--cache", help="Compute the last layer's features once; this takes more memory.")
]
_ONCE = "Learn each word as often as it was typed, or its history again with each."
Once = Annotated[bool, typer.Option("--once/--as-paper", help=_ONCE)]
BatchedBy = Annotated[str, typer.Option("--batching", help=", ".join(BATCHINGS))]
Batch = Annotated[int, typer.Option(help="Take so many words a step.", min=1, max=MANY)]


def home_of(out: Path | None) -> Path:
    from mdl.peers.personal.home import default_home

    return out or default_home()


def study_settings(
    epochs: int, batch: int, optimizer: str, rate: float, seed: int, bfloat16: bool = False
) -> StudySettings:
    from mdl.personal.study import StudySettings

    check_choice("--optimizer", optimizer, ("sgd", "adam"))
    kind = cast(Literal["sgd", "adam"], optimizer)
    return StudySettings(epochs, batch, kind, rate, seed=seed, bfloat16=bfloat16)


def batching_of(name: str) -> Batching:
    check_choice("--batching", name, BATCHINGS)
    return cast("Batching", name)


def end_training(done: TrainingEnded, where: dict[str, Any], told: str, as_json: bool) -> None:
    import msgspec

    result = where | msgspec.to_builtins(done)
    if not done.finished:
        raise UnfinishedError(
            f"interrupted after {done.steps} batches, saved", 130, result, "the same command goes on where it was"
        )
    tell(told)
    if as_json:
        print_json(result)
