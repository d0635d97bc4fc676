"""The join code in forms that another device reads: as text, and as the dark and light of a QR code."""

from __future__ import annotations

import msgspec
import segno


class Invitation(msgspec.Struct, frozen=True):
    """The invitation for another device.

    code: the join code.
    command: what to type there.
    qr: rows of a QR code of the join code, "1" is dark.
    """

    code: str
    command: str
    qr: tuple[str, ...]


def invite(code: str) -> Invitation:
    rows = tuple("".join("1" if dark else "0" for dark in row) for row in segno.make(code, micro=False).matrix)
    return Invitation(code, f"mdl peer --mesh {code.partition(':')[0]}", rows)
