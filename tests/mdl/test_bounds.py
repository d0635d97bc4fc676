"""Bounds of what others may say: every number can be counted on from, a name is a name, a text is one line."""

import math
import re
import typing
import unicodedata

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import mdl.protocol.machine
import mdl.protocol.messages
from mdl import bounds
from mdl.bounds import MAX_TEXT, PeerId, Text, printable, whole_number, within
from mdl.protocol.delta import Contributor
from mdl.protocol.messages import Said
from mdl.transport.wire import codec as wire


def _accepts(kind: object, value: object) -> bool:
    try:
        msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=kind)
    except msgspec.ValidationError:
        return False
    return True


@pytest.mark.parametrize("name", ["a", "phone-2", "Ann_s.phone", "x" * 64, "observer-12-ff", "-x"])
def test_an_ordinary_name_is_one(name):
    assert _accepts(PeerId, name)


@pytest.mark.parametrize(
    "name",
    ["", "x" * 65, "..", ".hidden", "a/b", "a b", "a\n", "a\x1b[2J", "a\x07", "a\u202eb", "[red]a", "ä", "a\\b", "a:b"],
)
def test_what_could_not_be_a_file_or_a_line_is_no_name(name):
    assert not _accepts(PeerId, name)


@given(st.text(max_size=400))
@example("a\U000e0100")
def test_a_printable_text_may_be_told_and_is_one_line(text):
    shown = printable(text)
    assert _accepts(Text, shown)
    assert shown.isprintable()
    assert len(shown) <= MAX_TEXT


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=50))
def test_a_text_that_is_accepted_moves_no_cursor_and_turns_no_line(text):
    if _accepts(Text, text):
        assert not any(unicodedata.category(character) in ("Cc", "Zl", "Zp") for character in text)
        assert not any(unicodedata.bidirectional(character) in _TURNING for character in text)


_TURNING = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


@pytest.mark.parametrize("character", [chr(code) for code in (*range(32), *range(0x7F, 0xA0), 0x202E, 0x2028, 0x200B)])
def test_a_character_that_is_not_seen_is_refused_and_shown_as_its_escape(character):
    assert not _accepts(Text, f"a{character}b")
    assert re.fullmatch(r"a\\(x..|u....|[nrt])b", printable(f"a{character}b"))


def test_a_measured_value_is_told_within_bounds():
    assert [within(value, -1, 1) for value in (math.nan, math.inf, -math.inf, 0.5)] == [1, 1, -1, 0.5]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("7", 7),
        ("07", 7),
        ("99", 99),
        ("100", None),
        ("", None),
        ("-1", None),
        ("1_0", None),
        ("٣", None),
        (" 7", None),
    ],
)
def test_a_number_in_a_file_is_decimal_and_bounded(text, number):
    assert whole_number(text, 99) == number
    assert whole_number("9" * 100_000, 99) is None


def test_a_hop_of_the_last_term_has_an_id_that_can_be_sent():
    assert (bounds.MAX_TERM + 1) * 1_000_000 < 1 << 63


def _fields(kind: object, seen: set[object]) -> typing.Iterator[tuple[str, msgspec.inspect.Type]]:
    """Every leaf of a type: its path, and what is checked of it."""
    match kind:
        case msgspec.inspect.StructType(cls=cls, fields=fields):
            if cls in seen:
                return
            seen.add(cls)
            for field in fields:
                yield from ((f"{cls.__name__}.{field.name}", leaf) for _, leaf in _fields(field.type, seen))
        case msgspec.inspect.UnionType(types=types):
            for each in types:
                yield from _fields(each, seen)
        case msgspec.inspect.TupleType(item_types=types):
            for each in types:
                yield from _fields(each, seen)
        case msgspec.inspect.DictType(key_type=key, value_type=value):
            yield "", kind
            yield from _fields(key, seen)
            yield from _fields(value, seen)
        case msgspec.inspect.VarTupleType(item_type=item):
            yield "", kind
            yield from _fields(item, seen)
        case _:
            yield "", kind  # type: ignore[misc]


def _is_bounded(leaf: msgspec.inspect.Type) -> bool:
    match leaf:
        case msgspec.inspect.IntType(ge=least, le=most) | msgspec.inspect.FloatType(ge=least, le=most):
            return least is not None and (most if most is not None else leaf.lt) is not None
        case msgspec.inspect.StrType(pattern=pattern):
            return pattern is not None
        case (
            msgspec.inspect.BytesType(max_length=most)
            | msgspec.inspect.DictType(max_length=most)
            | msgspec.inspect.VarTupleType(max_length=most)
        ):
            return most is not None
        case msgspec.inspect.LiteralType():
            return True  # one of a few words
        case _:
            return isinstance(leaf, msgspec.inspect.BoolType | msgspec.inspect.EnumType | msgspec.inspect.NoneType)


@pytest.mark.parametrize(
    "kind", [Said, wire.Envelope, mdl.protocol.vocabulary.History, mdl.protocol.status_messages.RoundSummary]
)
def test_every_number_text_and_list_of_every_message_has_a_bound(kind):
    leaves = list(_fields(msgspec.inspect.type_info(kind), set()))
    assert len(leaves) > 5
    assert not [(path, leaf) for path, leaf in leaves if not _is_bounded(leaf)]


def test_a_contributor_of_a_message_has_a_name_and_a_start():
    for who in (Contributor("", 1), Contributor("a\n", 1), Contributor("a", -1), Contributor("a", (1 << 62) + 1)):
        assert not _accepts(Contributor, who)
