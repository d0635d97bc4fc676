"""Text of people and of the public, read in place: a file or a folder of texts, one a line, or of exported chats.

A folder's files are read in the order of their names, packed or not. Each line of a .txt is text; each of a .jsonl is
an object with a "text", and perhaps an "author". `PATH?me=NAME` takes only NAME's words; a chat is read only so.

Chats are exports of WhatsApp (text), Telegram (JSON) and SMS Backup & Restore (XML). An export holds other people's
words, and lines that an app wrote, so the reader must name the wanted person. Dates and the app's lines depend on the
app's language. Dates are known by their shape. The app's lines are known by their marks, or else by their text in the
languages below.
"""

from __future__ import annotations

import itertools
import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, NamedTuple
from xml.parsers import expat

import msgspec

from mdl.bounds import first_few, printable
from mdl.data.readers.archive import decode_lines, find_encoding, list_files, open_members, open_text
from mdl.data.sources import split_options
from mdl.data.spec import describe_choices
from mdl.errors import ConfigError, DataError
from mdl.reading import decode_json, open_regular, read_bytes, shorten

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
# Ten years of a family group are some 50 MB.
LARGEST_EXPORT_BYTES = 1 << 29
_PIECE_BYTES = 1 << 16
_LONGEST_NAME = 100
# "29/03/2026, 09:30 - ", "[29.03.26, 09:30:12] ", "[2026/3/29 上午9:30:12] ", "[29.3.2026 klo 9.30.12] ",
# "3/29/26, 9:30 PM - "
_DATE = r"\d{1,4}\s?[./-]\s?\d{1,2}\s?[./-]\s?\d{1,4}\.?"
_TIME = r"[^\d\[\]\n]{1,16}\d{1,2}[:.]\d{2}(?:[:.]\d{2})?[^\d\[\]\n:-]{0,16}?"
_STAMP = re.compile(rf"(?:\[{_DATE}{_TIME}\]\s|{_DATE}{_TIME}\s[-–]\s)")
_SENDER = re.compile(rf"([^\n:]{{1,{_LONGEST_NAME}}}): ")
# The app's own mark: on iOS a text of the app in the place of a message begins with it.
_MARK = "\u200e"
_UNSEEN = re.compile("[\u200b-\u200f\u202a-\u202f\u2066-\u2069\ufeff\u00a0]")
_IN_BRACKETS = re.compile(r"<[^<>\n]{1,80}>")
_FILE = re.compile(r"\S[^\n]{0,120}\.\w{2,5} \([^()\n]{1,60}\)")
_OMITTED = re.compile(
    r"\S+(?: \S+){0,2} (?:omitted|weggelassen|omitid[oa]|omise?|absente?|omess[oa]|ocultad[oa]|weggelaten|pominięto)"
)
_WRITTEN_BY_APP = frozenset(
    {
        "null",
        "this message was deleted", "you deleted this message", "missed voice call", "missed video call",
        "waiting for this message",
        "diese nachricht wurde gelöscht", "du hast diese nachricht gelöscht", "verpasster sprachanruf",
        "verpasster videoanruf",
        "se eliminó este mensaje", "este mensaje fue eliminado", "eliminaste este mensaje", "llamada perdida",
        "llamada de voz perdida", "videollamada perdida",
        "ce message a été supprimé", "vous avez supprimé ce message", "appel vocal manqué", "appel vidéo manqué",
        "questo messaggio è stato eliminato", "hai eliminato questo messaggio", "chiamata persa",
        "chiamata vocale persa", "videochiamata persa",
        "esta mensagem foi apagada", "mensagem apagada", "você apagou esta mensagem", "apagou esta mensagem",
        "chamada de voz perdida", "chamada de vídeo perdida",
        "dit bericht is verwijderd", "je hebt dit bericht verwijderd", "u hebt dit bericht verwijderd",
        "gemiste spraakoproep", "gemiste video-oproep",
    }
)  # fmt: skip
# Types of messages that the phone sent, or was to send: 1 is received.
_OWN_SMS, _RECEIVED = frozenset("23456"), "1"
# Stands for the other author of an SMS: nobody is called so.
_SOMEBODY = "(received)"
_CHARACTER = re.compile(rb"&#(x?)([0-9A-Fa-f]{1,8});")
_LONGEST_REFERENCE = 12
# A film in an MMS, in base64, is an attribute of some megabytes.
_LARGEST_ELEMENT_BYTES = 32 << 20


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

    def chat(self, where: str, messages: Iterable[TextLine]) -> Iterator[str]:
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


class TextLine(NamedTuple):
    """A line that somebody wrote. author: "" for the app. begins: it is the first line of its message.

    is_own: by the owner of the phone, if the export says that.
    """

    author: str
    text: str
    begins: bool = True
    is_own: bool = False


def plain_author(name: str) -> str:
    """Return a name without unseen characters, and without the mark of a person in no address book."""
    return _UNSEEN.sub(" ", name).strip().removeprefix("~").strip()


def is_whatsapp(lines: Sequence[str]) -> bool:
    """Return True if a text begins like an export: a stamp, and an author with a message."""
    written = [line for line in lines if line.strip()]
    if not written or not _STAMP.match(_UNSEEN.sub(" ", written[0]).lstrip()):
        return False
    return any(message.author and message.begins for message in read_whatsapp(iter(written)))


def read_whatsapp(lines: Iterator[str]) -> Iterator[TextLine]:
    """Yield the messages of an export of Android or iOS, in any of their languages, a line at a time."""
    author = ""
    for line in lines:
        shown = _UNSEEN.sub(" ", line).lstrip()
        if not (stamp := _STAMP.match(shown)):
            yield TextLine(author if not _is_of_app(line) else "", line, begins=False)
            continue
        # Every character was replaced by one: the line itself has the app's mark where the shown one has a space.
        rest = line[len(line) - len(shown) + stamp.end() :]
        sender = _SENDER.match(rest)
        said = rest[sender.end() :] if sender else rest
        author = plain_author(sender[1]) if sender and not _is_of_app(said) else ""
        yield TextLine(author, _without_edit_mark(said))


class _Part(msgspec.Struct):
    """A part of a text with links and the like."""

    text: str = ""


class _TelegramMessage(msgspec.Struct, rename={"author": "from"}):
    """forwarded_from: the words are another person's. from_id: "user" and a number."""

    type: str = ""
    text: str | list[str | _Part] = ""
    author: str | None = None
    from_id: str | None = None
    forwarded_from: msgspec.UnsetType | str | None = msgspec.UNSET


class _TelegramChat(msgspec.Struct):
    messages: list[_TelegramMessage] = []


class _TelegramChats(msgspec.Struct, rename={"all": "list"}):
    all: list[_TelegramChat] = []


class _Telegram(msgspec.Struct):
    """One chat, or all of an account."""

    messages: list[_TelegramMessage] | None = None
    chats: _TelegramChats | None = None


def read_telegram(content: bytes, where: str) -> Iterator[TextLine] | None:
    """Return the messages of a result.json; None for other JSON. Raises DataError for anything else."""
    found = decode_json(content, _Telegram, where, "result.json as Telegram exports it")
    if found.messages is None and found.chats is None:
        return None
    chats = [found.messages or [], *(chat.messages for chat in (found.chats.all if found.chats else []))]
    return (_of_telegram(message) for messages in chats for message in messages)


def read_sms(source: BinaryIO, where: str) -> Iterator[TextLine]:
    """Yield the messages of an SMS backup; the phone marks its owner's. Raises DataError if it is none.

    A document type is refused: entities that it defines can be made to unpack to gigabytes.
    """
    found: list[TextLine] = []
    seen, box = 0, _RECEIVED

    def begin(name: str, given: dict[str, str]) -> None:
        nonlocal seen, box
        seen += 1
        if seen == 1 and name != "smses":
            raise DataError(f"{where}: it is XML of <{printable(name, 40)}>; expected <smses>, an SMS backup")
        if name == "sms":
            add(given.get("type", _RECEIVED), given.get("body", ""))
        elif name == "mms":
            box = given.get("msg_box", _RECEIVED)
        elif name == "part" and given.get("ct") == "text/plain":
            add(box, given.get("text", ""))

    def add(where_kept: str, text: str) -> None:
        own = where_kept in _OWN_SMS
        found.append(TextLine("" if own else _SOMEBODY, text, is_own=own))

    def refuse(*_: object) -> None:
        raise DataError(f"{where}: it defines entities (<!DOCTYPE>), which no SMS backup does")

    parser = expat.ParserCreate()
    parser.StartElementHandler = begin
    parser.StartDoctypeDeclHandler = refuse
    left, waiting = b"", 0
    try:
        # The parser begins anew with an incomplete element: the longer it is, the larger the next piece. A piece never
        # goes beyond the size that shows it to be too long: the rest would be parsed in vain.
        while piece := source.read(max(_PIECE_BYTES, min(waiting, _LARGEST_ELEMENT_BYTES + 1 - waiting))):
            elements = seen
            whole, left = _mend_characters(left + piece)
            parser.Parse(whole)
            waiting = waiting + len(piece) if seen == elements else 0
            if waiting > _LARGEST_ELEMENT_BYTES:
                raise DataError(f"{where}: an element of more than {_LARGEST_ELEMENT_BYTES} bytes")
            yield from found
            found.clear()
        parser.Parse(left, True)
    except expat.ExpatError as error:
        raise DataError(f"{where}: no XML that can be read ({shorten(error)})") from None
    yield from found


def _is_of_app(text: str) -> bool:
    """Return True if the app wrote this in the place of a message."""
    plain = _UNSEEN.sub(" ", text).strip()
    if text.startswith(_MARK) or _IN_BRACKETS.fullmatch(plain) or _FILE.fullmatch(plain) or _OMITTED.fullmatch(plain):
        return True
    return plain.casefold().rstrip(".") in _WRITTEN_BY_APP


def _without_edit_mark(text: str) -> str:
    """Return "see you <This message was edited>" without its end."""
    end = text.rstrip()
    mark = end.rfind("<")
    return end[:mark].rstrip(f" {_MARK}") if mark > 0 and _IN_BRACKETS.fullmatch(end[mark:]) else text


def _of_telegram(message: _TelegramMessage) -> TextLine:
    if message.type != "message" or message.forwarded_from is not msgspec.UNSET:
        return TextLine("", "")
    text = message.text
    joined = text if isinstance(text, str) else "".join(each if isinstance(each, str) else each.text for each in text)
    return TextLine(plain_author(message.author or message.from_id or "unknown"), joined)


def _mend_characters(piece: bytes) -> tuple[bytes, bytes]:
    """Remove characters that XML does not allow: the app writes emoji as two halves. Return the rest, and its end apart
    if that may be half a character."""
    mended = _CHARACTER.sub(_keep_allowed, piece)
    cut = mended.rfind(b"&", max(0, len(mended) - _LONGEST_REFERENCE))
    return (mended, b"") if cut < 0 or b";" in mended[cut:] else (mended[:cut], mended[cut:])


def _keep_allowed(reference: re.Match[bytes]) -> bytes:
    number = int(reference[2], 16 if reference[1] else 10) if reference[1] or reference[2].isdigit() else 0
    is_allowed = (
        number in (9, 10, 13) or 32 <= number < 0xD800 or 0xE000 <= number < 0xFFFE or 0x10000 <= number <= 0x10FFFF
    )
    return reference[0] if is_allowed else b" "
