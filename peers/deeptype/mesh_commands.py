"""`mdl personal join` and `adopt`: the one place where a person's model and a mesh meet.

The mesh gets the shared model, built from a file without anything of the person, and its words.

Options that commands of `mdl personal` share, and the settings made of them.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mdl.config import MANY
from mdl.errors import UnfinishedError
from mdl.peers.command.options import (
    AsJson,
    Code,
    Fresh,
    Insecure,
    Join,
    Listen,
    LogLevel,
    Loopback,
    MeshName,
    Name,
    OwnRounds,
    Quiet,
    When,
    find_mesh,
    finite,
    load_settings,
    log_at,
    mesh_overrides,
    print_json,
    tell,
)
from mdl.peers.command.progress import progress_bar

if TYPE_CHECKING:
    from mdl.config import Config
    from mdl.peers.deeptype.home import Shared, TextLesson
    from mdl.peers.edge.gatekeeper import Gatekeeper
    from mdl.transport.trust.keys import Mesh
from typing import TYPE_CHECKING, Any, Literal, cast

from mdl.config import LARGEST_SEED
from mdl.peers.command.options import check_choice

if TYPE_CHECKING:
    from mdl.peers.deeptype.model.personalise import Batching
    from mdl.peers.deeptype.model.study import StudySettings
    from mdl.peers.deeptype.train import TrainingEnded


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
    from mdl.peers.deeptype.home import default_home

    return out or default_home()


def study_settings(
    epochs: int, batch: int, optimizer: str, rate: float, seed: int, bfloat16: bool = False
) -> StudySettings:
    from mdl.peers.deeptype.model.study import StudySettings

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


BeganWith = Annotated[
    Path | None, typer.Option(help="Name the shared model that the personal one began with, if it began elsewhere.")
]

SharedModel = Annotated[Path | None, typer.Option("--model", help="Train this shared model, the same on all devices.")]
SharedRate = Annotated[
    float, typer.Option(help="Set the learning rate in the mesh; 0 suits the model.", min=0.0, max=1e3, callback=finite)
]
WordsARound = Annotated[int, typer.Option(help="Train so many words in each round; 0 trains all.", min=0, max=MANY)]


def join_mesh(
    text: Corpus,
    model: SharedModel = None,
    out: Home = None,
    author: Author = "",
    mesh: MeshName = None,
    code: Code = None,
    rounds: OwnRounds = 0,
    words_a_round: WordsARound = 0,
    epochs: Epochs = 1,
    batch: Batch = 16,
    rate: OwnRate = 0.0,
    shared_rate: SharedRate = 0.0,
    once: Once = True,
    limit: Limit = 0,
    when: When = None,
    seed: SeedOf = 0,
    fresh: Fresh = False,
    name: Name = None,
    join: Join = None,
    listen: Listen = None,
    loopback: Loopback = None,
    insecure: Insecure = None,
    log_level: LogLevel = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train the shared model together with other people's devices.

    Then this person's own part is trained on it; that part stays here. Ctrl-C ends the rounds, and keeps what came of
    them.
    """
    log_at(log_level, quiet)
    from mdl.peers.deeptype import train
    from mdl.peers.deeptype.home import TextLesson, read_shared, take_over, words_of
    from mdl.peers.deeptype.model.personalise import Techniques
    from mdl.peers.edge.gatekeeper import make_gatekeeper

    overrides = {"round.rounds": rounds} | mesh_overrides(join, listen, None, None, loopback, insecure)
    settings = load_settings(None, overrides, None)
    folder, gate = home_of(out), make_gatekeeper(when or "")
    ours = read_shared(folder, model)
    said = words_of(train.read_sentences(text, author, limit), ours[1].table)
    lessons = study_settings(1, batch, "sgd", shared_rate, seed)
    lesson = TextLesson(said, lessons, words_a_round, lambda: bool(gate.forbidden_by), once=once)
    how = name, rounds or 0, fresh
    _train_together(find_mesh(mesh, code, settings), settings, ours, lesson, gate, how, (folder, model))
    take_over(folder, ours, model)
    own = study_settings(epochs, batch, "sgd", rate, seed)
    with progress_bar() as show:
        done = train.train(text, folder, None, Techniques(once=once), own, author, 0.0, limit, when or "", True, show)
    end_training(done, {"directory": str(folder)}, f"{folder}: {done.classes} words on the new shared model", as_json)


def adopt(
    model: Annotated[Path, typer.Argument(help="Move to this shared model, which went on from the one before.")],
    out: Home = None,
    began_with: BeganWith = None,
    as_json: AsJson = False,
) -> None:
    """Put this person's own part onto a new shared model.

    That part is words and the last layer. It takes no text.
    """
    from mdl.peers.deeptype.home import take_over
    from mdl.peers.deeptype.model.model_file import load_next_word

    folder = home_of(out)
    take_over(folder, load_next_word(model), began_with)
    if as_json:
        print_json({"directory": str(folder)})
    tell(f"{folder} builds on {model} now")


def _train_together(
    mesh: Mesh,
    settings: Config,
    ours: Shared,
    lesson: TextLesson,
    gate: Gatekeeper,
    how: tuple[str | None, int, bool],
    places: tuple[Path, Path | None],
) -> None:
    """Train to the mesh's end as `how` says (name, rounds, fresh); the model then holds its result.

    places: the person's directory, and the model that was given.
    The mesh gets the shared model's tensors and a hash of its words. Raises UnfinishedError if there was no round, or
    if it was interrupted; the result of the rounds is taken over then.
    """
    from mdl.config import Config, RoundSection
    from mdl.learning.loop import Loop
    from mdl.peers.deeptype.home import take_over, teach
    from mdl.peers.loops import Member, Place, Saying

    (model, described), (name, rounds, fresh), (folder, began_with) = ours, how, places
    words = described.table.words
    config = Config(mesh=settings.mesh, round=RoundSection(rounds=rounds))
    place = Place(name, fresh=fresh, classes=tuple(words))
    member = Member(mesh, model, Loop(), place, Saying(), config)
    is_over = False
    with suppress(KeyboardInterrupt), member, gate.looking(member.pause):
        teach(member, model, lesson)
        is_over = True
    result = {"directory": str(folder), "round": member.round_id}
    if not member.round_id:
        raise UnfinishedError("no round was finished, nothing is saved", 4 if is_over else 130, result)
    if not is_over:
        take_over(folder, ours, began_with)
        raise UnfinishedError(f"interrupted, the shared model of round {member.round_id} is saved", 130, result)
