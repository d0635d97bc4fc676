"""The long-term key of a device, and its signatures.

One secret of 32 bytes yields an Ed25519 key to sign with and a CURVE key for links. The public half of the former is
the device, in every mesh that it is a member of.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import msgspec
import zmq
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from zmq.utils import z85

from mdl.errors import ConfigError
from mdl.protocol.vocabulary import PeerInfo
from mdl.trust.statements import Proof

SECRET_BYTES = 32


@dataclass(frozen=True)
class SigningKey:
    """An Ed25519 key. public: 32 bytes."""

    public: bytes
    _private: Ed25519PrivateKey = field(repr=False, compare=False)

    @classmethod
    def of(cls, seed: bytes) -> SigningKey:
        """Derive the key from a seed of 32 bytes."""
        private = Ed25519PrivateKey.from_private_bytes(seed)
        return cls(private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw), private)

    def sign(self, claim: bytes) -> bytes:
        return self._private.sign(claim)


@dataclass(frozen=True)
class DeviceKey:
    """The keys of a device. curve_public, curve_secret: Z85 text (40 bytes)."""

    signing: SigningKey
    curve_public: bytes
    curve_secret: bytes = field(repr=False)

    @classmethod
    def of(cls, secret: bytes) -> DeviceKey:
        """Derive the keys from this secret. Raises ConfigError unless it has 32 bytes."""
        if len(secret) != SECRET_BYTES:
            raise ConfigError(f"device key: {len(secret)} bytes, it has {SECRET_BYTES}")
        curve_secret = z85.encode(_derive(secret, b"curve"))
        return cls(SigningKey.of(_derive(secret, b"sign")), zmq.curve_public(curve_secret), curve_secret)

    @property
    def public(self) -> bytes:
        """The public key that stands for the device: 32 bytes."""
        return self.signing.public

    def mark(self, challenge: bytes, incarnation: int) -> bytes:
        """Return 16 bytes that only this start of this device can make of a challenge."""
        key = _derive(z85.decode(self.curve_secret), b"mark")
        return hashlib.blake2b(challenge + incarnation.to_bytes(8, "big"), key=key, digest_size=16).digest()

    def seal(self, content: bytes) -> bytes:
        """Return 32 bytes that only this device can make of content that it keeps."""
        key = _derive(z85.decode(self.curve_secret), b"kept")
        return hashlib.blake2b(content, key=key, digest_size=32).digest()

    @property
    def link_key(self) -> bytes:
        """The key that its connections show: 32 bytes."""
        return z85.decode(self.curve_public)


def is_signed(public: bytes, claim: bytes, signature: bytes) -> bool:
    """Return True if the secret of this Ed25519 key (32 bytes) has signed the claim."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, claim)
    except (InvalidSignature, ValueError):
        return False
    return True


def where_claim(mesh_id: str, info: PeerInfo, proof: Proof) -> bytes:
    """Return the bytes that a device signs to state the address of one of its peers."""
    said = (mesh_id, info.peer_id, info.incarnation, info.role, info.port, info.schema_hash)
    return b"mdl where 1\0" + msgspec.msgpack.encode((said, proof.link_port, proof.hosts, proof.serial))


def _derive(secret: bytes, purpose: bytes) -> bytes:
    return hashlib.blake2b(b"mdl device", key=secret, person=purpose, digest_size=32).digest()
