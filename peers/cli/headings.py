"""Help in groups: commands and options stand under headings, each with one whole sentence, without rich's boxes.

A heading is typer's `rich_help_panel`. Typer groups by it only if rich draws the help, and loading rich takes longer
than all else that `mdl --help` does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.models import CommandFunctionType

# The headings of `mdl --help`, in its order.
MESH = "Mesh"
DATA = "Data and models"
SCHEDULE = "Schedule"
LOOK = "Look inside"
PERSONAL = "Personal models and recommendation"
MACHINE = "This machine"
COMMANDS = (MESH, DATA, SCHEDULE, LOOK, PERSONAL, MACHINE)

# The headings of options that not every user needs first; options without a heading stand above them.
MEETING = "Meeting the other devices"
ROUNDS = "Rounds and model"
LIMITS = "Limits of this device"
OUTPUT = "Output and settings"
OPTIONS = (MEETING, ROUNDS, LIMITS, OUTPUT)

_WHOLE = 1_000  # characters of a sentence, so that it is not cut
_WIDEST = 30  # the width of a left column, equal to click's


class CommandGroup(typer.Typer):
    """A group of commands of `mdl`."""

    def __init__(self, about: str | None = None) -> None:
        super().__init__(
            cls=_Group,
            help=about,
            no_args_is_help=True,
            add_completion=False,
            rich_markup_mode=None,
            pretty_exceptions_enable=False,
        )

    def command(self, name: str | None = None, **settings: Any) -> Callable[[CommandFunctionType], CommandFunctionType]:
        """Add a command, as typer.Typer does, with help in groups."""
        return super().command(name, cls=_Command, **settings)


class _Command(TyperCommand):
    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_options(self, ctx, formatter)


class _Group(TyperGroup):
    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_options(self, ctx, formatter)
        found: dict[str, list[tuple[str, str]]] = {heading: [] for heading in COMMANDS}
        for name in self.list_commands(ctx):
            command: Any = self.get_command(ctx, name)
            if command.hidden:
                continue
            heading = command.rich_help_panel or "Commands"
            found.setdefault(heading, []).append((name, command.get_short_help_str(_WHOLE)))
        _write(found, formatter)


def _write_options(command: Any, ctx: Any, formatter: Any) -> None:
    found: dict[str, list[tuple[str, str]]] = {heading: [] for heading in ("Arguments", "Options")}
    for each in command.get_params(ctx):
        usual = "Arguments" if each.param_type_name == "argument" else "Options"
        if record := each.get_help_record(ctx):
            found.setdefault(getattr(each, "rich_help_panel", None) or usual, []).append(record)
    _write(found, formatter)


def _write(found: Mapping[str, Sequence[tuple[str, str]]], formatter: Any) -> None:
    """Write all headings with their entries; the right column begins at one place."""
    longest = max((len(name) for rows in found.values() for name, _ in rows), default=0)
    for heading, rows in found.items():
        if rows:
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(min(longest, _WIDEST)), told) for name, told in rows])
