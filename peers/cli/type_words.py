"""`mdl type`: a terminal to type into, with suggestions that learn."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mdl.errors import UnfinishedError
from mdl.peers.cli.options import AsJson, finite, print_json, tell
from mdl.peers.cli.personal_options import Home, home_of


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

    from mdl.peers.personal.run_typing import run_typing
    from mdl.peers.view.type_terminal import type_here

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
