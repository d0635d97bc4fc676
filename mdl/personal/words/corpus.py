"""Text of people and of the public, read in place: a file or a folder of texts, one a line, or of exported chats.

A folder's files are read in the order of their names, packed or not. Each line of a .txt is text; each of a .jsonl is
an object with a "text", and perhaps an "author". `PATH?me=NAME` takes only NAME's words; a chat is read only so.
"""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from mdl.bounds import first_few, printable
from mdl.data.readers.archive import decode_lines, find_encoding, list_files, open_members, open_text
from mdl.data.sources import split_options
from mdl.data.spec import describe_choices
from mdl.errors import ConfigError, DataError
from mdl.personal.words.chats import (
    LARGEST_EXPORT_BYTES,
    Message,
    is_whatsapp,
    plain_author,
    read_sms,
    read_telegram,
    read_whatsapp,
)
from mdl.reading import decode_json, open_regular, read_bytes

logger = logging.getLogger(__name__)

_EXPECTED = (
    "a file or folder of .txt, .txt.gz, .jsonl, .jsonl.gz, a .zip of .txt, or an export of WhatsApp (.txt, .zip), "
    "Telegram (.json) or SMS (.xml)"
)
# Lines that identify a chat: an export begins with the app's own lines.
_FIRST_LINES = 50
# The start of other XML that tells its kind: the first element, behind a remark at most.
_START_BYTES = 1 << 12
# Names kept of a chat: a group has at most 1,024 members.
_MOST_NAMES = 4096


class NoTextError(DataError):
    """A place where text was expected has none."""

    hint = f"give {_EXPECTED}"


class _Entry(msgspec.Struct):
    """One line of a .jsonl. text: written by somebody; author: their name, if the file has it."""

    text: str
    author: str = ""


@dataclass
class _Reading:
    """The reading of one place, for one person or for everybody (""). names: number of messages by author."""

    whose: str
    found: int = 0
    names: Counter[str] = field(default_factory=Counter)

    def chat(self, where: str, messages: Iterable[Message]) -> Iterator[str]:
        """Yield one person's lines of a chat; count the rest. Raises ConfigError if no person is named."""
        counts, takes = Counter[str](), False
        for author, text, begins, is_own in messages:
            if begins:
                takes = is_own or (bool(author) and author.casefold() == self.whose)
                counts["mine" if takes else "others" if author else "app"] += 1
                if author and (author in self.names or len(self.names) < _MOST_NAMES):
                    self.names[author] += 1
            if takes and (author or is_own):
                yield text
        if counts["others"] and not counts["mine"] and not self.whose:
            one = printable(next(iter(self.names)), 40)
            raise ConfigError(f"{where}: a chat of {self.tell_names()}: name yourself, as in ?me={one}")
        left_out = counts["others"] + counts["app"]
        message = "%s: read %d messages, left out %d: %d by others, %d by the app"
        logger.info(message, where, counts["mine"], left_out, counts["others"], counts["app"])

    def tell_names(self) -> str:
        return first_few([printable(name, 40) for name, _ in self.names.most_common()])


def parse_place(place: Path | str) -> tuple[Path, str]:
    """Split PATH?me=NAME into the path, and the name or "". Raises ConfigError for another option."""
    body, options = split_options(str(place), "text")
    for name in options:
        if name != "me":
            raise ConfigError(f"{place}: unknown option {name!r}; {describe_choices(name, ['me'])}")
    return Path(body), options.get("me", "")


def read_lines_of(place: Path, author: str = "") -> Iterator[str]:
    """Yield every line of text, in the files' order. author: only this one's, as with `?me=` behind the path.

    Raises DataError that names the file and line for anything but text, and for a place without any; ConfigError for a
    chat if the user's own name is missing.
    """
    path, me = parse_place(place)
    whose = me or author
    reading = _Reading(plain_author(whose).casefold())
    for file in list_files(path):
        for line in _read_file(file, whose, reading, is_alone=file == path):
            reading.found += 1
            yield line
    if not reading.found:
        by = f" by author {whose!r}" if whose else ""
        told = f"its authors are {reading.tell_names()}" if reading.names else f"expected {_EXPECTED}"
        raise NoTextError(f"{path}: no text{by} in it; {told}")


def _read_file(file: Path, whose: str, reading: _Reading, is_alone: bool) -> Iterator[str]:
    name = file.name.lower()
    kind = name.removesuffix(".gz")
    if kind.endswith(".txt"):
        with open_text(file, encoding=find_encoding(file), errors="replace") as lines:
            yield from _text_or_chat(str(file), lines, reading)
    elif kind.endswith(".jsonl"):
        yield from _read_entries(file, whose)
    elif name.endswith(".zip"):
        yield from _read_zip(file, reading)
    elif name.endswith(".json"):
        messages = read_telegram(read_bytes(file, LARGEST_EXPORT_BYTES, "an export of Telegram"), str(file))
        if messages is not None:
            yield from reading.chat(str(file), messages)
        elif is_alone:
            raise DataError(f"{file}: no chat in it; expected result.json as Telegram exports it")
    elif name.endswith(".xml"):
        with open_regular(file, "an SMS backup") as source:
            if not is_alone and b"<smses" not in source.read(_START_BYTES):
                return
            source.seek(0)
            yield from reading.chat(str(file), read_sms(source, str(file)))


def _text_or_chat(where: str, lines: Iterator[str], reading: _Reading) -> Iterator[str]:
    first = list(itertools.islice(lines, _FIRST_LINES))
    lines = itertools.chain(first, lines)
    return reading.chat(where, read_whatsapp(lines)) if is_whatsapp(first) else lines


def _read_entries(file: Path, author: str) -> Iterator[str]:
    with open_text(file, encoding=find_encoding(file)) as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            entry = decode_json(line, _Entry, f"{file}, line {number}", 'an object with a "text"')
            if not author or entry.author == author:
                yield entry.text


def _read_zip(file: Path, reading: _Reading) -> Iterator[str]:
    with open_members(file) as members:
        for name in members.names():
            if name.endswith(".txt") and not name.rpartition("/")[2].startswith("README"):
                yield from _text_or_chat(f"{file}: {name}", decode_lines(members.read(name)), reading)
