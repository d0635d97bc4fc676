"""Options that several benchmarks have, under one name and with one meaning each."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

import msgspec

from benchmarks.links.places import Case, parse_case
from mdl.config import TrainingSettings
from mdl.errors import ConfigError

Parser = argparse.ArgumentParser
Namespace = argparse.Namespace
_SPEC = "a data spec, as `mdl data inspect` takes it"


def add_data(parser: Parser, default: str | None = None, what: str = _SPEC) -> None:
    """--data; without a default it has to be given."""
    parser.add_argument("--data", default=default, required=default is None, help=what)


def add_model(parser: Parser) -> None:
    """--model, by its name."""
    parser.add_argument("--model", default="lenet", help="a model's name")


def add_seeds(parser: Parser, default: Sequence[int] = (0, 1, 2)) -> None:
    """--seeds, one or more: all is done with each of them."""
    parser.add_argument("--seeds", type=int, nargs="+", default=list(default), metavar="SEED", help="one run for each")


def add_runs(parser: Parser, default: int, what: str = "how often all is measured, in turns") -> None:
    """--runs."""
    parser.add_argument("--runs", type=int, default=default, help=what)


def add_rounds(parser: Parser, default: int, what: str | None = None) -> None:
    """--rounds of a mesh."""
    parser.add_argument("--rounds", type=int, default=default, help=what)


def add_recipe(parser: Parser, rounds: int = 20) -> None:
    """--data, --model, --rounds, --seeds and --set of a benchmark that trains."""
    add_data(parser)
    add_model(parser)
    add_rounds(parser, rounds)
    add_seeds(parser)
    add_training(parser)


def add_settings(parser: Parser) -> None:
    """--set KEY=VALUE, any number of them, once or several times."""
    parser.add_argument(
        "--set", action="extend", nargs="*", default=[], metavar="KEY=VALUE", help="of mdl's configuration"
    )


def add_training(parser: Parser) -> None:
    """--set JSON, of training alone."""
    parser.add_argument("--set", help='training settings as JSON, for example {"learning_rate": 0.001}')


def training_of(given: Namespace, start: TrainingSettings) -> TrainingSettings:
    """Return `start` with what `--set` changes. Raises ConfigError."""
    try:
        changed = msgspec.to_builtins(start) | (json.loads(given.set) if given.set else {})
        return msgspec.convert(changed, TrainingSettings)
    except (ValueError, TypeError, msgspec.MsgspecError) as error:
        raise ConfigError(f"--set {given.set}: {error}") from None


def one_of(option: str, asked: str, valid: Sequence[str]) -> list[str]:
    """Return the names of an option that takes several, separated by commas. Raises ConfigError."""
    names = [name for name in asked.split(",") if name]
    if unknown := [name for name in names if name not in valid]:
        raise ConfigError(f"{option} {unknown[0]}: choose from {', '.join(valid)}")
    return names


def need_more_rounds(rounds: int, warm_up: int) -> None:
    """Raise ConfigError if no round would be left that counts."""
    if rounds <= warm_up:
        raise ConfigError(f"--rounds {rounds}: the first {warm_up} only warm up and are not counted; take more")


def case(text: str) -> Case:
    """Read LINKS@MB, for argparse."""
    try:
        return parse_case(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
