"""Systems that do not tell a program which interfaces are up: Android, and an emulated processor."""

from __future__ import annotations

import errno

import psutil
import pytest

from mdl.transport.discovery.interfaces import interface_states, usable_interfaces


@pytest.mark.parametrize(("code", "is_told"), [(errno.EACCES, False), (errno.ENOTTY, False), (errno.EMFILE, True)])
def test_interfaces_are_used_where_the_system_does_not_tell_which_are_up(
    code: int, is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise OSError(code, "refused (originated from ioctl(SIOCETHTOOL))")

    monkeypatch.setattr(psutil, "net_if_stats", refuse)
    if is_told:
        with pytest.raises(OSError, match="refused"):
            interface_states()
        return
    assert interface_states() is None
    assert isinstance(usable_interfaces(), list)
