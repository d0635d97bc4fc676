"""What a device by itself pulls: the small model that it may begin with, its group's large one, and which kind that is.

The same form keeps a device's own model and the one that its updates are changes of, on its disk.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from safetensors.torch import save

from mdl.cloud.update_codec import decode_tensors
from mdl.errors import RemoteProtocolError

# A large model of the built-in ones has a few MB at most; whatever is far beyond it is no lesson.
LARGEST_LESSON_BYTES = 64 << 20


def pack_parts(parts: Sequence[bytes]) -> bytes:
    """Packed models, and a name, as one."""
    arrays = {str(at): torch.frombuffer(bytearray(part), dtype=torch.uint8) for at, part in enumerate(parts)}
    return save(arrays)


def unpack_parts(data: bytes, count: int) -> list[bytes]:
    """Raises RemoteProtocolError in one line if these are not `count` parts, or longer than any lesson."""
    tensors = decode_tensors(data, LARGEST_LESSON_BYTES, "lesson")
    names = [str(at) for at in range(count)]
    if tensors.keys() != set(names) or any(it.dtype != torch.uint8 or it.ndim != 1 for it in tensors.values()):
        raise RemoteProtocolError(f"lesson does not hold {count} parts")
    return [tensors[name].numpy().tobytes() for name in names]
