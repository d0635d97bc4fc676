"""Exports of chats: what one person wrote is read, other people's words and the app's lines are not."""

from __future__ import annotations

import io
import json
import logging
import zipfile
from pathlib import Path

import pytest

from mdl.errors import ConfigError, DataError
from mdl.peers.deeptype.model.corpus import is_whatsapp, read_lines_of, read_sms, read_whatsapp

MARK = "\u200e"
ANDROID = """29/03/2026, 09:30 - Messages and calls are end-to-end encrypted. No one outside of this chat can read them.
29/03/2026, 09:31 - Ben: see you at the station
<Media omitted>
second line of it
29/03/2026, 09:32 - Ann: my secret: sorry
and more of it
29/03/2026, 09:33 - Ben: <Media omitted>
29/03/2026, 09:34 - Ben: IMG-20260329-WA0001.jpg (file attached)
29/03/2026, 09:35 - Ben: This message was deleted
29/03/2026, 09:36 - Ben: note: with a colon <This message was edited>
29/03/2026, 09:37 - Ann changed the group description
"""
MINE = ["see you at the station", "second line of it", "note: with a colon"]
IPHONE = f"""[29.03.26, 09:30:12] Family: {MARK}Nachrichten und Anrufe sind Ende-zu-Ende-verschlüsselt.
[29.03.26, 09:31:00] Ben: see you at the station
{MARK}<Media omitted>
second line of it
[29.03.26, 09:32:00] ~\u202fAnn: my secret: sorry
and more of it
{MARK}[29.03.26, 09:33:00] Ben: {MARK}Bild weggelassen
{MARK}[29.03.26, 09:34:00] Ben: {MARK}<Anhang: 00000012-PHOTO.jpg>
[29.03.26, 09:35:00] Ben: Du hast diese Nachricht gelöscht.
[29.03.26, 09:36:00] Ben: note: with a colon {MARK}<Diese Nachricht wurde bearbeitet.>
[29.03.26, 09:37:00] Family: {MARK}Ann hat die Gruppenbeschreibung geändert.
"""
STAMPS = {
    "Android, English of the United States": "3/29/26, 9:30 PM - ",
    "Android, with a narrow space": "3/29/26, 9:30\u202fPM - ",
    "Android, German": "29.03.26, 09:30 - ",
    "Android, French": "29/03/2026 à 09:30 - ",
    "Android, Spanish": "29/3/26, 9:30 p. m. - ",
    "Android, Portuguese": "29/03/2026 09:30 - ",
    "Android, Dutch": "29-03-2026 09:30 - ",
    "Android, Swedish": "2026-03-29 09:30 - ",
    "Android, Korean": "2026. 3. 29. 오후 9:30 - ",
    "iOS, English": "[29/03/2026, 09:30:12] ",
    "iOS, of the United States": "[3/29/26, 9:30:12 PM] ",
    "iOS, German": "[29.03.26, 09:30:12] ",
    "iOS, Spanish": "[29/3/26 9:30:12 p. m.] ",
    "iOS, Finnish": "[29.3.2026 klo 9.30.12] ",
    "iOS, Chinese": "[2026/3/29 上午9:30:12] ",
    "iOS, Arabic": "[\u0662\u0669/\u0663/\u0662\u0660\u0662\u0666, \u0669:\u0663\u0660:\u0661\u0662 \u0635] ",
}


def read(path: Path, me: str = "Ben") -> list[str]:
    place = path.with_name(f"{path.name}?me={me}") if me else path
    return [line.strip() for line in read_lines_of(place) if line.strip()]


@pytest.mark.parametrize("export", [ANDROID, IPHONE], ids=["Android", "iOS"])
def test_what_one_person_wrote_is_read_and_the_rest_counted(tmp_path, caplog, export):
    (tmp_path / "WhatsApp Chat with Ann.txt").write_text(export)
    with caplog.at_level(logging.INFO):
        assert read(tmp_path / "WhatsApp Chat with Ann.txt") == MINE
        assert read(tmp_path / "WhatsApp Chat with Ann.txt", "ann") == ["my secret: sorry", "and more of it"]
    assert "read 2 messages, left out 6: 1 by others, 5 by the app" in caplog.text
    with zipfile.ZipFile(tmp_path / "chat.zip", "w") as archive:
        archive.writestr("_chat.txt", export)
    assert read(tmp_path / "chat.zip") == MINE


def test_a_chat_is_refused_where_nobody_says_who_they_are(tmp_path):
    (tmp_path / "chat.txt").write_text(ANDROID)
    with pytest.raises(ConfigError, match=r"chat\.txt: a chat of Ben, Ann: name yourself, as in \?me=Ben"):
        read(tmp_path / "chat.txt", "")
    with pytest.raises(DataError, match="no text by author 'Bob' in it; its authors are Ben, Ann"):
        read(tmp_path / "chat.txt", "Bob")
    with pytest.raises(ConfigError, match=r"unknown option 'mee'; did you mean me\?"):
        list(read_lines_of(tmp_path / "chat.txt?mee=Ben"))


@pytest.mark.parametrize("stamp", STAMPS.values(), ids=list(STAMPS))
def test_dates_of_many_languages_are_known(stamp):
    lines = [f"{stamp}{name}: {text}\n" for name, text in (("Ann", "one"), ("\u202a+49 170 123\u202c", "two"))]
    assert is_whatsapp(lines)
    assert [(each.author, each.text) for each in read_whatsapp(iter(lines))] == [
        ("Ann", "one\n"),
        ("+49 170 123", "two\n"),
    ]


@pytest.mark.parametrize(
    "text",
    ["one\ntwo\n", "He said: no\n", "12.5.2026 was a day: long\n", "\n"],
)
def test_other_texts_are_no_chats(text):
    assert not is_whatsapp(text.splitlines(keepends=True))


@pytest.mark.parametrize("all_chats", [False, True])
def test_telegram(tmp_path, caplog, all_chats):
    text = ["see ", {"type": "link", "text": "https://x.org"}, " there"]
    messages = [
        {"id": 1, "type": "service", "actor": "Ann", "action": "create_group", "text": ""},
        {"id": 2, "type": "message", "from": "Ben", "from_id": "user1", "text": "hello"},
        {"id": 3, "type": "message", "from": "Ann", "text": "my secret"},
        {"id": 4, "type": "message", "from": "Ben", "text": text},
        {"id": 5, "type": "message", "from": "Ben", "forwarded_from": None, "text": "of somebody else"},
    ]
    chat = {"name": "Ann", "type": "personal_chat", "id": 7, "messages": messages}
    whole = {"personal_information": {"user_id": 1}, "chats": {"list": [chat]}} if all_chats else chat
    (tmp_path / "result.json").write_text(json.dumps(whole))
    with caplog.at_level(logging.INFO):
        assert read(tmp_path / "result.json") == ["hello", "see https://x.org there"]
    assert "read 2 messages, left out 3: 1 by others, 2 by the app" in caplog.text
    with pytest.raises(ConfigError, match="a chat of Ben, Ann"):
        read(tmp_path / "result.json", "")


SMS = b"""<?xml version='1.0' encoding='UTF-8' standalone='yes' ?>
<?xml-stylesheet type="text/xsl" href="sms.xsl"?>
<smses count="4">
<sms protocol="0" address="+491" type="1" body="my secret" contact_name="Ann" />
<sms protocol="0" address="+491" type="2" body="see you &#55357;&#56832; soon" contact_name="Ann" />
<mms msg_box="1"><parts><part ct="text/plain" text="another secret" /></parts></mms>
<mms msg_box="2"><parts><part ct="image/jpeg" text="null" data="/9j/" />
<part ct="text/plain" text="look" /></parts></mms>
</smses>"""


def test_an_sms_backup_says_itself_what_its_owner_wrote(tmp_path, caplog):
    (tmp_path / "sms.xml").write_bytes(SMS)
    with caplog.at_level(logging.INFO):
        assert read(tmp_path / "sms.xml", "") == ["see you    soon", "look"]
    assert "read 2 messages, left out 2: 2 by others, 0 by the app" in caplog.text


def test_half_a_character_at_the_end_of_a_piece_is_mended():
    filling = b'<sms type="1" body="' + b"a" * 65_400 + b'"/>'
    for more in range(120):
        document = b"<smses>" + filling[:-3] + b"b" * more + b'"/><sms type="2" body="&#55357;&#56832;x"/></smses>'
        assert [each.text.strip() for each in read_sms(io.BytesIO(document), "x") if each.is_own] == ["x"]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"<!DOCTYPE smses [<!ENTITY a 'b'>]><smses><sms type='2' body='&a;'/></smses>", "defines entities"),
        (b"<calls count='0'></calls>", "XML of <calls>; expected <smses>"),
        (b"<smses><sms", "no XML that can be read"),
        (b"{}", "no XML that can be read"),
    ],
)
def test_other_xml_is_refused(tmp_path, content, told):
    (tmp_path / "sms.xml").write_bytes(content)
    with pytest.raises(DataError, match=told):
        read(tmp_path / "sms.xml", "")


def test_beside_texts_other_files_are_passed_over(tmp_path):
    (tmp_path / "a.txt").write_text("one\n")
    (tmp_path / "b.json").write_text('{"name": "no chat"}')
    (tmp_path / "c.xml").write_text("<calls/>")
    assert read(tmp_path, "") == ["one"]
    with pytest.raises(DataError, match="no chat in it"):
        read(tmp_path / "b.json", "")
