"""Text as a keyboard sees it: words, sentences, the table of tokens, and where text is read from."""

from __future__ import annotations

import gzip
import zipfile
from pathlib import Path

import pytest

from mdl.errors import DataError
from mdl.peers.deeptype.model.corpus import read_lines_of
from mdl.peers.deeptype.model.text import LONGEST_WORD, UNKNOWN, Speller, TokenTable, build_table, encode, split_words


def test_words_are_letters_with_apostrophes_inside_and_sentences_end() -> None:
    line = "It’s 5 o'clock, 'ok'? See https://x.org/a or @anna: Zoë's café…fine"
    assert list(split_words(line)) == [["it's", "o'clock", "ok"], ["see", "or", "zoë's", "café"], ["fine"]]
    assert list(split_words("... 42 !")) == []


def test_a_table_has_unknown_the_most_frequent_words_and_all_characters() -> None:
    table = build_table([["b", "a", "b"], ["c", "a", "b"]], words=3)
    assert table == TokenTable(("b", "a"), "abc")
    assert (table.classes, table.size) == (3, 7)  # <unk>, b, a; then a, b, c, and any other character
    speller = Speller(table)
    assert [speller.word_id(word) for word in ("b", "a", "c")] == [1, 2, UNKNOWN]
    assert speller.character_ids("cab!") == [5, 3, 4, 6]
    assert [table.word(number) for number in range(3)] == ["<unk>", "b", "a"]


def test_2_words_and_characters_share_one_table_and_never_meet() -> None:
    table = build_table([["a", "aa", "a"]], words=10)
    speller = Speller(table)
    assert speller.word_id("a") != speller.character_ids("a")[0]
    assert speller.character_ids("a" * 100) == speller.character_ids("a" * LONGEST_WORD)


def test_text_is_numbers_and_can_be_cut_between_sentences() -> None:
    text = encode([["a", "b"], ["c"], ["a", "a", "a"]], TokenTable(("a", "b"), "ab"))
    assert text.classes.tolist() == [1, 2, 0, 1, 1, 1]
    assert text.spelled == ("a", "b", "c")
    assert text.first(4).classes.tolist() == [1, 2, 0]
    assert text.between(2, 6).classes.tolist() == [0, 1, 1, 1]
    assert len(text.between(3, 5)) == 0


def test_a_corpus_is_a_file_or_a_folder_packed_or_not(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    with gzip.open(tmp_path / "b.jsonl.gz", "wt") as file:
        file.write('{"author": "x", "text": "three"}\n\n{"author": "y", "text": "four"}\n')
    with zipfile.ZipFile(tmp_path / "c.zip", "w") as archive:
        archive.writestr("news/1.txt", b"caf\xe9s")
        archive.writestr("README.TXT", "not this")
    assert [line.strip() for line in read_lines_of(tmp_path)] == ["one", "two", "three", "four", "cafés"]
    assert list(read_lines_of(tmp_path / "b.jsonl.gz", author="y")) == ["four"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "cp1252"])
@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.zip"])
def test_text_is_read_in_the_encodings_of_tables(tmp_path: Path, encoding: str, name: str) -> None:
    content = "ein café um die ecke\nja – schön\n".encode(encoding)
    if name == "a.zip":
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("a.txt", content)
    else:
        (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert [line.strip() for line in read_lines_of(tmp_path)] == ["ein café um die ecke", "ja – schön"]


@pytest.mark.parametrize(
    ("name", "content", "author", "told"),
    [
        ("x.jsonl", b'{"text": 5}', "", "line 1"),
        ("x.jsonl", b'{"text": "a", "author": "b"}', "anna", "no text by author 'anna'"),
        ("x.csv", b"a,b", "", "expected a file or folder of .txt"),
        ("x.zip", b"PK", "", "x.zip"),
    ],
)
def test_what_is_no_corpus_is_named(tmp_path: Path, name: str, content: bytes, author: str, told: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=told):
        list(read_lines_of(tmp_path / name, author))


@pytest.mark.slow
def test_real_corpora_have_the_words_their_readme_counts(data_dir: Path) -> None:
    counted = {
        folder: sum(len(words) for line in read_lines_of(data_dir / folder) for words in split_words(line))
        for folder in ("tweets", "bbc_news")
    }
    # Links, @names and numbers are no words here.
    assert 1.2e6 < counted["tweets"] < 1.6e6
    assert 0.7e6 < counted["bbc_news"] < 0.9e6
