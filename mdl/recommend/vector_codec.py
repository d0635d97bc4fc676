"""A device's vector in transit: sixteen bytes that name the basis it was learned with, then little-endian float32."""

from __future__ import annotations

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray
from torch import Tensor

from mdl.errors import RemoteProtocolError
from mdl.recommend.metapatch import Basis

_NAME_BYTES = 16
# Vectors begin near U(0, u), with entries below 10, and Adam moves them by 0.02 a step.
LARGEST_ENTRY = 1e3


class OtherBasisError(RemoteProtocolError):
    """The vector has another basis: neither it nor its device is at fault, but the device has to pull again."""


def name_basis(basis: Basis) -> bytes:
    """Return sixteen bytes of a digest of Theta."""
    return blake3(basis.theta.detach().numpy().tobytes()).digest(_NAME_BYTES)


def pack_vector(vector: Tensor, basis_name: bytes) -> bytes:
    """Pack a vector: 4 bytes an entry and 16 for the basis."""
    return basis_name + vector.detach().numpy().astype("<f4").tobytes()


def read_vector(packed: bytes, basis_name: bytes, size: int) -> NDArray[np.float32]:
    """Return the vector (size,).

    Raises RemoteProtocolError in one line for other bytes, OtherBasisError for a vector of another basis.
    """
    if packed[:_NAME_BYTES] != basis_name:
        raise OtherBasisError("the vector is of another basis than this cloud's")
    if len(packed) != _NAME_BYTES + 4 * size:
        raise RemoteProtocolError(f"a vector of {len(packed) - _NAME_BYTES} bytes; expected {size} float32")
    vector = np.frombuffer(packed, "<f4", offset=_NAME_BYTES).astype(np.float32)
    if not np.isfinite(vector).all():
        raise RemoteProtocolError("the vector holds NaN or infinity")
    if np.abs(vector).max() > LARGEST_ENTRY:
        raise RemoteProtocolError(
            f"the vector holds {np.abs(vector).max():.3g}; at most {LARGEST_ENTRY:g} can be meant"
        )
    return vector
