"""The lesson that a single device pulls: the small model to begin with, its group's large one, and that one's name.

The same form keeps two models on a device's disk: its own, and the origin of its updates.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from safetensors.torch import save

from mdl.cloud.update_codec import decode_tensors
from mdl.errors import RemoteProtocolError

# A built-in large model has a few MB at most; far longer bytes are no lesson.
LARGEST_LESSON_BYTES = 64 << 20


def pack_parts(parts: Sequence[bytes]) -> bytes:
    """Pack packed models, and a name, into one."""
    arrays = {str(at): torch.frombuffer(bytearray(part), dtype=torch.uint8) for at, part in enumerate(parts)}
    return save(arrays)


def unpack_parts(data: bytes, count: int) -> list[bytes]:
    """Unpack `count` parts. Raises RemoteProtocolError in one line for other bytes, or more than any lesson has."""
    tensors = decode_tensors(data, LARGEST_LESSON_BYTES, "lesson")
    names = [str(at) for at in range(count)]
    if tensors.keys() != set(names) or any(it.dtype != torch.uint8 or it.ndim != 1 for it in tensors.values()):
        raise RemoteProtocolError(f"lesson does not hold {count} parts")
    return [tensors[name].numpy().tobytes() for name in names]
