"""Devices as their user names them: by their names in the mesh, or by the words of their keys."""

from __future__ import annotations

from collections.abc import Iterable

from mdl.errors import ConfigError
from mdl.peers.trust.ownership import find_device
from mdl.transport.trust.membership import Membership
from mdl.transport.trust.words import fingerprint, is_fingerprint


class Named:
    """names: of all of them, as given. Raises ConfigError for an unknown device, or for this one.

    A name stands for the whole key that has it in the mesh. Words of a device that this one has not met stand for the
    first key that is met and has them.
    """

    def __init__(self, membership: Membership, texts: Iterable[str]) -> None:
        self._keys: dict[bytes, str] = {}
        self._words: dict[str, str] = {}
        for text in texts:
            words = text.strip().lower().replace(" ", "-")
            try:
                self._keys[find_device(membership, text)] = text
            except ConfigError:
                if not is_fingerprint(words):
                    raise
                self._words[words] = text
        self.names = frozenset([*self._keys.values(), *self._words.values()])
        if self.name_of(membership.device.public):
            raise ConfigError(f"{self.name_of(membership.device.public)} is this device: name another one")

    def name_of(self, device: bytes) -> str:
        """Return the name of the device with this key; "" for one that is not among them."""
        if device not in self._keys and (text := self._words.pop(fingerprint(device), "")):
            self._keys[device] = text
        return self._keys.get(device, "")

    def key_of(self, text: str) -> bytes:
        """Return the key that a name stands for; empty while only its words are known."""
        return next((key for key, given in self._keys.items() if given == text), b"")

    def words_of(self, text: str) -> str:
        """Return the words of the key that a name stands for."""
        key = self.key_of(text)
        return fingerprint(key) if key else text.strip().lower().replace(" ", "-")
