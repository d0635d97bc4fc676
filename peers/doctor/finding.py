"""The finding of a check: one line, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

import msgspec


class Severity(Enum):
    """NOTE: a mesh works all the same; FAIL: it does not, or not with the device in question."""

    OK = "ok"
    NOTE = "note"
    FAIL = "fail"


class Finding(msgspec.Struct, frozen=True):
    """check: its name, stable for scripts. told: the finding. do: what to type or change. around: the way without."""

    check: str
    verdict: Severity
    told: str
    do: str = ""
    around: str = ""


def ok(check: str, told: str) -> Finding:
    return Finding(check, Severity.OK, told)


def note(check: str, told: str, do: str = "", around: str = "") -> Finding:
    return Finding(check, Severity.NOTE, told, do, around)


def fail(check: str, told: str, do: str, around: str = "") -> Finding:
    return Finding(check, Severity.FAIL, told, do, around)


def broken(findings: Iterable[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.verdict is Severity.FAIL]
