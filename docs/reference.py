"""Pages of reference from what the code says of itself: commands, configuration, messages."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import msgspec.inspect as type_info
from msgspec.inspect import type_info as inspect_type

from mdl import config
from mdl.config import Section, ranges_of
from mdl.data.sources import source_forms
from mdl.learning.built_in import MODELS
from mdl.peers.cli.main import whole
from mdl.peers.command.options import COMMANDS
from mdl.peers.view import snapshot
from mdl.peers.web.prometheus import METRICS
from mdl.protocol import cloud_messages, messages, round_messages, sharing_messages, status_messages, vocabulary
from mdl.scheduler.policies.registry import POLICIES

_MESSAGES = (
    (vocabulary, "Words that messages share"),
    (round_messages, "Rounds"),
    (status_messages, "Status"),
    (messages, "Introductions"),
    (cloud_messages, "Clouds"),
    (sharing_messages, "Shared windows"),
)

_JSON_TYPES: dict[type, str] = {
    type_info.StrType: "text",
    type_info.LiteralType: "text",
    type_info.IntType: "whole number",
    type_info.FloatType: "number",
    type_info.BoolType: "true/false",
    type_info.NoneType: "null",
}


def write(folder: Path) -> None:
    """Write the pages into a folder."""
    folder.mkdir(exist_ok=True)
    pages = {"commands": _commands(), "configuration": _configuration(), "messages": _messages()}
    pages |= {"choices": _choices(), "snapshot": _snapshot(), "metrics": _metrics()}
    for name, lines in pages.items():
        (folder / f"{name}.md").write_text("\n".join(lines) + "\n")


def _commands() -> Iterator[str]:
    yield "# Commands"
    yield ""
    yield "Each command tells the same by `--help`. Exit codes: [exit-codes](../exit-codes.md)."
    found: dict[str, list[tuple[str, Any]]] = {heading: [] for heading in COMMANDS}
    for name, command in whole().commands.items():
        if command.hidden:
            continue
        found.setdefault(command.rich_help_panel or "Other", []).append((name, command))
    for heading, commands in found.items():
        yield from ("", f"## {heading}")
        for name, command in commands:
            yield from _command(f"mdl {name}", command)


def _command(name: str, command: Any) -> Iterator[str]:
    about = inspect.cleandoc(command.help or "")
    yield from ("", f"### {name}", "", about)
    for inner, each in getattr(command, "commands", {}).items():
        yield from _command(f"{name} {inner}", each)
    context = command.context_class(command, info_name=name)
    rows = [each.get_help_record(context) for each in command.get_params(context) if each.name != "help"]
    rows = [row for row in rows if row]
    if rows:
        yield from ("", *_table(("option", "meaning"), [(f"`{option}`", text) for option, text in rows]))


def _configuration() -> Iterator[str]:
    yield "# Configuration"
    yield ""
    yield (
        "A file is given by `--config FILE` (TOML), a single key by `--set table.key=value`. "
        "An unknown key is an error that names the nearest valid one."
    )
    for section in _sections(config.Config):
        ranges, told = ranges_of(section), _fields(section)
        summary = inspect.cleandoc(section.__doc__ or "").split("\n\n")[0]
        yield from ("", f"## [{section.table}]", "", summary, "")
        rows = []
        for field in msgspec.structs.fields(section):
            valid = str(ranges[field.name]) if field.name in ranges else ""
            rows.append((f"`{field.name}`", f"`{_value(field.default)}`", valid, told.get(field.name, "")))
        yield from _table(("key", "default", "valid", "meaning"), rows)


def _value(value: Any) -> str:
    return msgspec.json.encode(value).decode() if value is not msgspec.NODEFAULT else "-"


def _sections(section: type[Section]) -> Iterator[type[Section]]:
    for field in msgspec.structs.fields(section):
        if isinstance(field.type, type) and issubclass(field.type, Section):
            yield field.type
            yield from _sections(field.type)


def _messages() -> Iterator[str]:
    yield "# Messages"
    yield ""
    yield (
        "The messages between devices, with their senders, receivers and fields, as they stand in the code. "
        "[Protocol](../protocol.md) and [the tour](../tour.md) say what they are for. "
        "Every message may come twice, late or never; the side that still wants something says it again."
    )
    for module, heading in _MESSAGES:
        yield from ("", f"## {heading}", "", inspect.cleandoc(module.__doc__ or "").split("\n\n")[0])
        for kind in _structs(module):
            parts = inspect.cleandoc(kind.__doc__ or "").split("\n\n")
            about = [part for part in parts if not re.match(r"[a-z_0-9]+: ", part)]
            yield from ("", f"### {kind.__name__}", "", "\n\n".join(about))
            if told := _fields(kind):
                rows = [(f"`{name}`", text) for name, text in told.items()]
                yield from ("", *_table(("field", "meaning"), rows))


def _choices() -> Iterator[str]:
    yield "# Data, models and policies"
    told = "`--data` names one of these ([your own data](../data.md)); `mdl data list` prints them."
    yield from ("", "## Data", "", told, "")
    yield from _table(("`--data`", "reads"), [(f"`{form}`", about) for form, about in source_forms().items()])
    told = "`--model` names one of these ([models](../training-model.md)), or a function of yours."
    yield from ("", "## Models", "", told, "")
    yield from _table(("`--model`", "is"), [(f"`{it.form or name}`", it.about) for name, it in MODELS.items()])
    told = "`--policy` names one of these ([choose a policy](../schedule.md#choose-a-policy))."
    yield from ("", "## Policies", "", told, "")
    yield from _table(("policy", "rule"), [(f"`{name}`", known.about) for name, known in POLICIES.items()])


def _snapshot() -> Iterator[str]:
    yield "# The snapshot"
    yield ""
    yield (
        "All fields of the [snapshot](../api.md) as JSON. An entry with a name of its own stands in an object by that "
        "name: devices by peer id, rounds and hops by number. Seconds of a round count from its opening, by the "
        'agent\'s clock. `null` is "not known"; take a missing field for the same.'
    )
    yield ""
    yield (
        "New fields may come at any time. `schema` rises when a field means something else, or is gone. Texts are for "
        "people. Names and texts come from other devices: show them as text, never as markup."
    )
    parts = [kind for kind in _structs(snapshot) if kind is not snapshot.Told]  # the knowledge that it is made from
    for kind in reversed(parts):
        about = inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0]
        told = {name: text.replace("None:", "null:") for name, text in _fields(kind).items()}
        rows = [
            (f"`{field.name}`", _json_type(inspect_type(field.type)), told.get(field.name, ""))
            for field in msgspec.structs.fields(kind)
        ]
        yield from ("", f"## {kind.__name__}", "", about, "", *_table(("field", "type", "meaning"), rows))


def _json_type(kind: Any) -> str:
    """Return a type in words: "list of text", "number or null"."""
    if isinstance(kind, type_info.UnionType):
        return " or ".join(_json_type(each) for each in sorted(kind.types, key=lambda it: it == type_info.NoneType()))
    if isinstance(kind, type_info.DictType):
        return f"object of {_json_type(kind.value_type)}"
    if isinstance(kind, type_info.VarTupleType):
        return f"list of {_json_type(kind.item_type)}"
    return kind.cls.__name__ if isinstance(kind, type_info.StructType) else _JSON_TYPES[type(kind)]


def _metrics() -> Iterator[str]:
    yield "# Metrics"
    yield ""
    yield "`--metrics-port PORT` serves these for [Prometheus](../api.md#metrics)."
    yield ""
    yield from _table(
        ("name", "by", "meaning"), [(f"`{it.name}`", it.label and f"`{it.label}`", it.meaning) for it in METRICS]
    )


def _structs(module: ModuleType) -> Iterator[type[msgspec.Struct]]:
    for kind in vars(module).values():
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind.__module__ == module.__name__:
            yield kind


def _fields(kind: type) -> dict[str, str]:
    """Return name -> meaning of the fields that a docstring documents, one a line."""
    found: dict[str, str] = {}
    name = ""
    for line in inspect.cleandoc(kind.__doc__ or "").splitlines():
        if match := re.match(r"([a-z_0-9]+): (.*)", line):
            name = match[1]
            found[name] = match[2]
        elif name and line.startswith("    "):
            found[name] += " " + line.strip()
        else:
            name = ""
    return found


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(re.sub(r"\s+", " ", cell).replace("|", "\\|") for cell in row) + " |"
