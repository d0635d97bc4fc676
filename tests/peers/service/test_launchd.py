"""A launchd job is read back as it was meant, and no word begins a second line in it."""

from __future__ import annotations

import plistlib
from dataclasses import replace
from pathlib import Path

import pytest

from mdl.errors import ConfigError
from mdl.peers.service import Service, how_to_load, write_plist

WORDS = ("peer", "--data", 'csv:/srv/a b.csv?label="x"&columns=<a>%20\'b$HOME\\d', "--when", "é")
SERVICE = Service("peer-home", ("/opt/mdl/bin/mdl",), WORDS, 3, 600, None, directory=Path("/Users/ann/a & b"))


def test_a_job_is_read_back_word_by_word() -> None:
    job = plistlib.loads(write_plist(SERVICE).encode())
    assert job["ProgramArguments"] == ["/opt/mdl/bin/mdl", *WORDS]
    assert (job["Label"], job["WorkingDirectory"]) == ("mdl-peer-home", "/Users/ann/a & b")
    assert job["EnvironmentVariables"]["OMP_NUM_THREADS"] == "3"
    assert job["EnvironmentVariables"]["MDL_LOG_FILE"] == job["StandardErrorPath"]
    assert (job["ProcessType"], job["Nice"], job["LowPriorityIO"], job["Umask"]) == ("Background", 10, True, 0o077)
    assert (job["RunAtLoad"], job["KeepAlive"]) == (True, {"SuccessfulExit": False})
    assert "launchctl bootstrap gui/$(id -u) ~/Library/LaunchAgents/mdl-peer-home.plist" in how_to_load(SERVICE)


def test_a_databases_address_is_named_by_its_file() -> None:
    job = plistlib.loads(write_plist(replace(SERVICE, store_file=Path("/Users/ann/own.store"))).encode())
    assert job["ProgramArguments"][-2:] == ["--store", "@/Users/ann/own.store"]


@pytest.mark.parametrize("word", ["two\nlines", "bell\a", "\x1b[2J", "\u202e", "\0"])
def test_a_word_that_does_not_stay_in_its_line_is_refused(word: str) -> None:
    for service in (replace(SERVICE, words=("peer", word)), replace(SERVICE, directory=Path("/srv") / word)):
        with pytest.raises(ConfigError, match="a character that no service's file can"):
            write_plist(service)
