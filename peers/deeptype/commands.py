"""`mdl personal`: a personal model, trained on this device from what one person wrote (DeepType). `mdl type`: typing.

The terminal to type into has suggestions that learn.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mdl.config import MANY
from mdl.errors import ConfigError, UnfinishedError
from mdl.peers.command.options import (
    PERSONAL,
    AsJson,
    CommandGroup,
    LogLevel,
    Quiet,
    When,
    finite,
    log_at,
    print_json,
    tell,
)
from mdl.peers.command.progress import progress_bar
from mdl.peers.deeptype.mesh_commands import (
    Anew,
    Author,
    Batch,
    BatchedBy,
    Cached,
    Corpus,
    Epochs,
    Halved,
    Home,
    Limit,
    Once,
    Optimizer,
    OwnRate,
    Rate,
    SeedOf,
    Top,
    batching_of,
    end_training,
    home_of,
    study_settings,
)

if TYPE_CHECKING:
    from mdl.peers.deeptype.model.efficiency import SuggestionScore

app = CommandGroup("Train a personal model from what one person wrote.")


@app.command("pretrain")
def pretrain(
    corpus: Corpus,
    out: Annotated[Path, typer.Option(help="Write the global model to this file (safetensors).")] = Path(
        "global.safetensors"
    ),
    words: Annotated[
        int, typer.Option(help="Know so many of the most frequent words; others are unknown.", min=2, max=200_000)
    ] = 20_000,
    hidden: Annotated[int, typer.Option(help="Give each of the two LSTM layers so many units.", min=1, max=4096)] = 400,
    rank: Annotated[
        int,
        typer.Option(
            help="Factor embedding and last layer to this rank; 0 keeps them whole. With --start it compresses.",
            min=0,
            max=4096,
        ),
    ] = 0,
    start: Annotated[Path | None, typer.Option(help="Go on from this model, as after --rank.")] = None,
    epochs: Epochs = 5,
    batch: Batch = 128,
    rate: Rate = 0.003,
    optimizer: Optimizer = "adam",
    batching: BatchedBy = "shared",
    sampled: Annotated[
        int,
        typer.Option(help="Score so many words a step, drawn anew; 0 scores all. Finish with all.", min=0, max=200_000),
    ] = 0,
    limit: Limit = 0,
    bfloat16: Halved = False,
    when: When = None,
    seed: SeedOf = 0,
    fresh: Anew = False,
    log_level: LogLevel = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train the global model on public text.

    Ctrl-C saves a usable model, and the same command goes on.
    """
    log_at(log_level, quiet)
    from mdl.peers.deeptype import train as edge

    settings, how = study_settings(epochs, batch, optimizer, rate, seed, bfloat16), batching_of(batching)
    with progress_bar() as show:
        done = edge.pretrain(
            corpus, out, (words, hidden, rank), settings, how, start, limit, sampled, when or "", fresh, show
        )  # fmt: skip
    end_training(done, {"model": str(out)}, f"{out}: {done.classes} words, {done.bytes / 1e6:.1f} MB", as_json)


@app.command("train")
def train(
    text: Corpus,
    model: Annotated[
        Path | None, typer.Option(help="Begin with this global model; by default with this person's.")
    ] = None,
    out: Home = None,
    author: Author = "",
    all_layers: Annotated[
        bool, typer.Option("--all-layers", help="Let every layer learn, not the last alone.")
    ] = False,
    words: Annotated[
        int, typer.Option(help="Keep so many words, the used ones first; 0: all.", min=0, max=200_000)
    ] = 10_000,
    uses: Annotated[
        int, typer.Option(help="Add a word to the vocabulary once it was used so often; 0 adds none.", min=0, max=MANY)
    ] = 2,
    batching: BatchedBy = "exact",
    cache: Cached = False,
    once: Once = True,
    test: Annotated[
        float, typer.Option(help="Hold the last part out, and test with it.", min=0, max=0.9, callback=finite)
    ] = 0.0,
    epochs: Epochs = 5,
    batch: Batch = 16,
    rate: OwnRate = 0.0,
    optimizer: Optimizer = "sgd",
    limit: Limit = 0,
    when: When = None,
    seed: SeedOf = 0,
    fresh: Anew = False,
    log_level: LogLevel = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train one person's model on their text.

    The model stays in --out. Ctrl-C saves, and the same command goes on.
    """
    log_at(log_level, quiet)
    from mdl.peers.deeptype import train as edge
    from mdl.peers.deeptype.model.personalise import Techniques

    folder = home_of(out)
    techniques = Techniques(not all_layers, words, uses, batching_of(batching), cache, once)
    settings = study_settings(epochs, batch, optimizer, rate, seed)
    with progress_bar() as show:
        done = edge.train(
            text, folder, model, techniques, settings, author, test, limit, when or "", fresh, show
        )  # fmt: skip
    if done.before and done.after and not as_json:
        _compare(done.before, done.after)
    told = f"{folder}: {done.classes} words ({done.new_words} new), {done.bytes / 1e6:.1f} MB, {done.seconds:.0f} s"
    end_training(done, {"directory": str(folder)}, told, as_json)


@app.command("eval")
def evaluate(
    model: Annotated[Path, typer.Argument(help="Test a model file, or a person's directory.")],
    text: Corpus,
    author: Author = "",
    top: Top = 3,
    ngrams: Annotated[Path | None, typer.Option(help="Test the n-grams of this text beside it.")] = None,
    limit: Limit = 0,
    as_json: AsJson = False,
) -> None:
    """Test how many characters a model saves on a text.

    It also prints the perplexity.
    """
    import msgspec

    from mdl.peers.deeptype import train as edge
    from mdl.peers.deeptype.home import MODEL
    from mdl.peers.deeptype.model.model_file import load_next_word

    loaded, described = load_next_word(model / MODEL if model.is_dir() else model)
    sentences = edge.read_sentences(text, author, limit)
    found = edge.assess(loaded, described.table, sentences, top)
    beside = {}
    if ngrams:
        beside = edge.compare_ngrams(loaded, described.table, edge.read_sentences(ngrams), sentences, top)
    if as_json:
        print_json({"top": top, **msgspec.to_builtins(found), "ngrams": beside})
        return
    print(f"{'':<8}  top-{top} efficiency   only words that begin as typed")
    print(f"{'model':<8}  {found.efficiency:>16.3f}   {found.filtered:>.3f}")
    for name, both in beside.items():
        plain = "" if both["efficiency"] is None else f"{both['efficiency']:.3f}"
        print(f"{name:<8}  {plain:>16}   {both['filtered']:>.3f}")
    print(f"perplexity {found.perplexity:.1f}, {found.words} words, {found.unknown:.1%} of them unknown")


@app.command("status")
def status(out: Home = None, as_json: AsJson = False) -> None:
    """Show the cost of this person's model.

    It lists disk, memory, and the seconds and modelled energy of a training.
    """
    import msgspec

    from mdl.peers.deeptype.home import describe

    found = describe(home_of(out))
    if as_json:
        print_json(msgspec.to_builtins(found))
        return
    record = found.record
    print(f"{found.directory}: {found.disk_bytes / 1e6:.1f} MB on disk")
    rank, megabytes = found.rank or "whole", found.model_bytes / 1e6
    print(f"model: {found.classes} words, {found.hidden} units, rank {rank}, {megabytes:.1f} MB")
    print(
        f"learned from {record.words} words in {record.trainings} trainings, {record.seconds:.0f} s of processor time"
    )
    share = found.battery_percent_a_training
    print(f"a training: {found.joules_a_training:.0f} J modelled, {share:.2f} % of a full phone")
    if record.typed:
        print(f"typed {record.typed} characters, saved {record.saved} more; {record.online_steps} steps while typing")
    if found.unfinished:
        print("a training is unfinished: the same `mdl personal train` goes on with it")


@app.command("words")
def words(
    add: Annotated[list[str] | None, typer.Option(help="Suggest this word from now on.")] = None,
    remove: Annotated[list[str] | None, typer.Option(help="Stop suggesting this word.")] = None,
    out: Home = None,
    as_json: AsJson = False,
) -> None:
    """List, add or remove words that a person's model knows.

    These are the words that it has learned from this person.
    """
    from mdl.peers.deeptype.train import edit_words, own_words

    folder = home_of(out)
    found = edit_words(folder, add or [], remove or []) if add or remove else own_words(folder)
    if as_json:
        print_json({"directory": str(folder), "words": found})
        return
    for word in found:
        print(word)
    tell(f"{len(found)} words of {folder} are this person's own")


@app.command("export")
def export(
    target: Annotated[
        Path, typer.Argument(help="Write the model with this person's words to FILE.safetensors or FILE.onnx.")
    ],
    out: Home = None,
    as_json: AsJson = False,
) -> None:
    """Copy this person's model to a file.

    The file holds words that the person wrote.
    """
    from mdl.peers.deeptype.home import MODEL
    from mdl.peers.deeptype.model.model_file import load_next_word, save_next_word

    loaded, described = load_next_word(home_of(out) / MODEL)
    if target.suffix not in (".safetensors", ".onnx"):
        raise ConfigError(f"{target}: expected a name that ends with .safetensors or .onnx")
    if target.suffix == ".onnx":
        from mdl.peers.deeptype.model.model_file import save_onnx

        save_onnx(target, loaded, described.table)
    else:
        told = described.trained_words, described.personal_words, described.base, described.own_words
        save_next_word(target, loaded, described.table, *told)
    if as_json:
        print_json({"file": str(target)})
    tell(f"{target} holds words that this person wrote: keep it private")


@app.command("forget")
def forget(
    out: Home = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete everything personal on this device.

    It deletes the model, words, unfinished trainings and logs of typing.
    """
    from mdl.peers.deeptype.home import forget as delete

    folder = home_of(out)
    if not yes:
        raise ConfigError(f"this deletes everything personal in {folder}: confirm it with --yes")
    gone = delete(folder)
    if as_json:
        print_json({"directory": str(folder), "deleted": gone})
    tell(f"deleted in {folder}: {', '.join(gone) or 'nothing was there'}")


def _compare(before: SuggestionScore, after: SuggestionScore) -> None:
    gain = after.efficiency / before.efficiency - 1 if before.efficiency else 0.0
    print(f"top-3 efficiency {before.efficiency:.3f} -> {after.efficiency:.3f} ({gain:+.1%}), "
          f"only words that begin as typed {before.filtered:.3f} -> {after.filtered:.3f}")  # fmt: skip


def register(main: typer.Typer) -> None:
    from mdl.peers.deeptype.mesh_commands import adopt, join_mesh

    app.command("join")(join_mesh)
    app.command("adopt")(adopt)
    main.add_typer(app, name="personal", rich_help_panel=PERSONAL)
    main.command("type", rich_help_panel=PERSONAL)(type_words)


def type_words(
    model: Annotated[
        Path | None, typer.Option(help="Begin with this global model; later this person's is used.")
    ] = None,
    out: Home = None,
    top: Annotated[int, typer.Option(help="Show so many suggestions.", min=1, max=9)] = 3,
    every_word: Annotated[
        bool, typer.Option("--any", help="Suggest also words that do not begin as typed, as the paper does.")
    ] = False,
    rate: Annotated[
        float | None,
        typer.Option(
            help="Learn at this rate; 0 learns nothing.",
            show_default="suits the model",
            min=0,
            max=100,
            callback=finite,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Type with suggestions that learn.

    1, 2 and 3 take one, Enter ends the sentence, Ctrl-D or Ctrl-C saves and ends.
    """
    import msgspec

    from mdl.peers.deeptype.typing_session import run_typing, type_here

    folder = home_of(out)
    session, interrupted = run_typing(folder, model, type_here, top, not every_word, rate)
    told = (
        f"{session.words} words, {session.saved_share:.0%} of their characters saved, {session.steps} steps of learning"
    )
    result = {"directory": str(folder), **msgspec.to_builtins(session)}
    if interrupted:
        tell(told)
        raise UnfinishedError("interrupted, saved", 130, result)
    tell(told)
    if as_json:
        print_json(result)
