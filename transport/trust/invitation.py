"""An invitation into a mesh: a device with the right three words gets the join code, over an insecure line.

    device to join: SPAKE2 message   ->
                                     <-   SPAKE2 message of the inviting device
                    its proof        ->                                           (a wrong one is a try)
                                     <-   proof and sealed text, or REFUSED

SPAKE2 makes one strong key of the words. A device without the words can guess once an exchange, and learns nothing for
offline guesses. The device to join proves itself first, so that an impostor that answers its call has that one guess
too, and no more. A device that hangs up before its proof has learned nothing, so only a wrong proof is a try. Each
address has TRIES_OF_ONE tries and all together have TRIES, so that a stranger uses up its own tries and not those of
the invited device. With 2^27 words an attacker with TRIES / TRIES_OF_ONE addresses on this network guesses right once
in 4.2 million invitations. An invitation is good for GOOD_FOR_S. Pure: `now` is an argument; sockets are in
`transport/links/inviting.py`.

spake2 does not compute in constant time. An attacker could time only words that are good for minutes and TRIES guesses.
"""

from __future__ import annotations

import hmac
import secrets
from collections import Counter
from collections.abc import Callable
from enum import Enum

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from spake2 import SPAKE2_A, SPAKE2_B, SPAKEError
from spake2.ed25519_basic import NotOnCurve

from mdl.errors import ConfigError, LocalProtocolError, RemoteProtocolError

TRIES_OF_ONE, TRIES = 3, 32
GOOD_FOR_S = 300.0
# A join code has 60 characters; the bound leaves room for more to travel with it one day.
MAX_TEXT_BYTES = 2048
_POINT_BYTES, _PROOF_BYTES, _TAG_BYTES = 33, 32, 16
MAX_FRAME_BYTES = _PROOF_BYTES + MAX_TEXT_BYTES + _TAG_BYTES
REFUSED = b"\0"
_JOINER, _INVITER = b"mdl invitation 1: joins", b"mdl invitation 1: invites"
# The key seals one text and is forgotten.
_NONCE = bytes(12)

Entropy = Callable[[int], bytes]


class _Next(Enum):
    """The frame that an end waits for."""

    MESSAGE = "message"
    PROOF = "proof"
    NOTHING = "nothing"


class Invitation:
    """The inviting end, over all its connections.

    tries_left: wrong proofs that are still accepted. was_taken: the text went to a device that knew the words.
    """

    def __init__(self, words: str, text: str, now: float, entropy: Entropy = secrets.token_bytes) -> None:
        """Open an invitation. words: of `draw_words`. text: the text to hand over, at most MAX_TEXT_BYTES in UTF-8."""
        self._words, self._text, self._entropy = words.encode(), text.encode(), entropy
        if len(self._text) > MAX_TEXT_BYTES:
            raise LocalProtocolError(f"an invitation to {len(self._text)} bytes, at most {MAX_TEXT_BYTES}")
        self.ends_at = now + GOOD_FOR_S
        self.tries_left = TRIES
        self._wrong: Counter[str] = Counter()
        self.was_taken = False

    def why_over(self, now: float) -> str:
        """Return the reason why it is over, in words; "" while it is open."""
        if self.was_taken:
            return "it was used"
        if not self.tries_left:
            return f"{TRIES} times somebody did not know the words"
        return f"{GOOD_FOR_S / 60:.0f} minutes are over" if now >= self.ends_at else ""

    def begin(self, host: str) -> Inviting:
        """Begin another connection, from this address."""
        return Inviting(self, SPAKE2_B(self._words, _JOINER, _INVITER, entropy_f=self._entropy), host)

    def left_to(self, host: str) -> int:
        """Return how often a device at this address may still be wrong."""
        return min(self.tries_left, TRIES_OF_ONE - self._wrong[host])

    def may_try(self, host: str) -> bool:
        return self.left_to(host) > 0

    def check(self, host: str, now: float) -> None:
        """Raise RemoteProtocolError if this address has no guess."""
        if why := self.why_over(now):
            raise RemoteProtocolError(f"the invitation is over: {why}")
        if not self.may_try(host):
            raise RemoteProtocolError(f"{TRIES_OF_ONE} times somebody at {host} did not know the words")

    def note_wrong(self, host: str) -> None:
        """Count a proof of other words against this address."""
        self.tries_left -= 1
        self._wrong[host] += 1

    def give(self) -> bytes:
        self.was_taken = True
        return self._text


class Inviting:
    """One connection of the inviting end. `is_over`: it neither sends nor takes another frame."""

    def __init__(self, invitation: Invitation, spake: SPAKE2_B, host: str) -> None:
        self._invitation, self._spake, self._host = invitation, spake, host
        self._keys: _Keys | None = None
        self._next = _Next.MESSAGE

    @property
    def is_over(self) -> bool:
        return self._next is _Next.NOTHING

    def handle(self, frame: bytes, now: float) -> bytes:
        """Return the answer to a frame. Raises RemoteProtocolError for an invalid one; the connection is over then."""
        match self._next, self._keys:
            case _Next.MESSAGE, None:
                self._next = _Next.NOTHING
                self._invitation.check(self._host, now)
                mine = self._spake.start()
                self._keys = _Keys.agree(self._spake, frame)
                self._next = _Next.PROOF
                return bytes(mine)
            case _Next.PROOF, _Keys() as keys:
                self._next = _Next.NOTHING
                if len(frame) != _PROOF_BYTES:
                    raise RemoteProtocolError(f"a proof of {len(frame)} bytes, {_PROOF_BYTES} are right")
                self._invitation.check(self._host, now)  # others may have guessed meanwhile
                if not hmac.compare_digest(frame, keys.joiner_proof):
                    self._invitation.note_wrong(self._host)
                    return REFUSED
                return keys.inviter_proof + keys.seal(self._invitation.give())
        raise RemoteProtocolError("more was said than there is to say")


class Joining:
    """The other end: the device that is told the words. text: the text that it was given, "" until then."""

    def __init__(self, words: str, entropy: Entropy = secrets.token_bytes) -> None:
        """Begin to join. words: as `parse_words` returns them."""
        self._spake = SPAKE2_A(words.encode(), _JOINER, _INVITER, entropy_f=entropy)
        self._keys: _Keys | None = None
        self.text = ""

    def begin(self) -> bytes:
        """Return the first frame."""
        return bytes(self._spake.start())

    def handle(self, frame: bytes) -> bytes:
        """Return the next frame to send, empty once `text` is there.

        Raises ConfigError if the words differ there, RemoteProtocolError if the frame is no answer.
        """
        if self._keys is None:
            self._keys = _Keys.agree(self._spake, frame)
            return self._keys.joiner_proof
        if frame == REFUSED:
            raise ConfigError("these are not the words that the inviting device shows: look again, each try counts")
        proof, sealed = frame[:_PROOF_BYTES], frame[_PROOF_BYTES:]
        if not hmac.compare_digest(proof, self._keys.inviter_proof):
            raise RemoteProtocolError("the answering device does not know the words: it is not the inviting device")
        self.text = self._keys.open(sealed)
        return b""


class _Keys:
    """The keys that both ends derive from the key that they agreed on; each part is used once."""

    def __init__(self, key: bytes) -> None:
        derived = HKDF(SHA256(), 3 * 32, salt=None, info=b"mdl invitation 1").derive(key)
        self.joiner_proof, self.inviter_proof = derived[:32], derived[32:64]
        self._cipher = ChaCha20Poly1305(derived[64:])

    @classmethod
    def agree(cls, spake: SPAKE2_A | SPAKE2_B, theirs: bytes) -> _Keys:
        """Derive keys bound to both messages and both ends. Raises RemoteProtocolError for an invalid message."""
        if len(theirs) != _POINT_BYTES:
            raise RemoteProtocolError(f"a message of {len(theirs)} bytes, {_POINT_BYTES} are right")
        try:
            return cls(spake.finish(theirs))
        except (SPAKEError, NotOnCurve, ValueError) as error:
            raise RemoteProtocolError(f"no SPAKE2 message: {error or type(error).__name__}") from None

    def seal(self, text: bytes) -> bytes:
        return self._cipher.encrypt(_NONCE, text, None)

    def open(self, sealed: bytes) -> str:
        """Decrypt the text. Raises RemoteProtocolError if it was changed on the way."""
        try:
            return self._cipher.decrypt(_NONCE, sealed, None).decode()
        except (InvalidTag, UnicodeDecodeError):
            raise RemoteProtocolError("the message was changed on the way") from None
