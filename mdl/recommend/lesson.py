"""The lesson of a cloud of recommenders: f, Theta, the encoder, and the names of items and of users' categories.

It is one safetensors text. A reader checks it fully before anything is built: a device takes no shape, number or name
on trust.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec
import torch
from safetensors.torch import save
from torch import Tensor, nn

from mdl.cloud.update_codec import decode_tensors
from mdl.errors import DataError, RemoteProtocolError
from mdl.protocol.delta import LARGEST_VALUE
from mdl.reading import decode_json
from mdl.recommend.din import JUNCTIONS, Din, DinSettings
from mdl.recommend.interactions import MOST_FEATURES, Feature, Name
from mdl.recommend.metapatch import Basis, Junction
from mdl.recommend.momodistill import PROFILE_SIZE, CloudModel, Encoder

# A million items of 32 numbers are 128 MB; the catalogue that a device holds is far smaller.
LARGEST_LESSON_BYTES = 64 << 20
_ABOUT = "about"
_PARTS = ("model", "basis", "encoder")
_Size = Annotated[int, msgspec.Meta(ge=1, le=1024)]
_Few = Annotated[int, msgspec.Meta(ge=0, le=8)]


class _Sizes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sizes of the model (see DinSettings), a device's vector and a patch."""

    embedding: _Size
    hidden: _Size
    history: _Size
    encoder_layers: _Few
    vector: Annotated[int, msgspec.Meta(ge=1, le=160)]
    bottleneck: _Size


class _About(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sizes: _Sizes
    titles: Annotated[tuple[Name, ...], msgspec.Meta(max_length=1 << 20)]
    features: Annotated[tuple[Feature, ...], msgspec.Meta(max_length=MOST_FEATURES)] = ()


@dataclass(frozen=True)
class RecommenderLesson:
    """cloud: its model knows no user by number. titles: of items, item i stands for titles[i - 1]."""

    cloud: CloudModel
    titles: tuple[str, ...]


def pack_lesson(lesson: RecommenderLesson) -> bytes:
    """Pack a lesson. It never raises LocalProtocolError, a bug: a cloud's models can always be packed."""
    cloud, settings = lesson.cloud, lesson.cloud.model.settings
    sizes = _Sizes(
        *(settings.embedding, settings.hidden, settings.history, settings.encoder_layers),
        *(cloud.basis.size, cloud.basis.bottleneck),
    )
    about = msgspec.json.encode(_About(sizes, lesson.titles, cloud.encoder.features))
    tensors: dict[str, Tensor] = {_ABOUT: torch.frombuffer(bytearray(about), dtype=torch.uint8)}
    for name, part in zip(_PARTS, (cloud.model, cloud.basis, cloud.encoder), strict=True):
        tensors |= {f"{name}.{key}": value.contiguous() for key, value in part.state_dict().items()}
    return save(tensors)


def read_lesson(packed: bytes) -> RecommenderLesson:
    """Read a lesson. Raises RemoteProtocolError in one line, naming the part that does not fit."""
    tensors = decode_tensors(packed, LARGEST_LESSON_BYTES, "lesson")
    told = tensors.pop(_ABOUT, None)
    if told is None or told.dtype != torch.uint8 or told.ndim != 1:
        raise RemoteProtocolError("lesson does not say what it is of")
    try:
        about = decode_json(told.numpy().tobytes(), _About, "lesson")
    except DataError as error:
        raise RemoteProtocolError(str(error)) from None
    sizes, titles = about.sizes, about.titles
    settings = DinSettings(sizes.embedding, sizes.hidden, sizes.history, 0.0, False, sizes.encoder_layers)
    if len(titles) * sizes.embedding * 4 > len(packed):
        raise RemoteProtocolError(f"lesson names {len(titles)} items and does not hold them")
    if (count := sum(len(each.categories) for each in about.features)) * PROFILE_SIZE * 4 > len(packed):
        raise RemoteProtocolError(f"lesson names {count} categories and does not hold them")
    with torch.device("meta"):  # a few bytes may claim sizes of gigabytes: shapes alone, until all values are seen
        model = Din(0, len(titles), settings)
        basis = Basis([Junction(name, sizes.hidden) for name in JUNCTIONS], sizes.vector, sizes.bottleneck)
        cloud = CloudModel(model, basis, Encoder(sizes.vector, about.features))
    for name, part in zip(_PARTS, (cloud.model, cloud.basis, cloud.encoder), strict=True):
        _fill(name, part, tensors)
    if tensors:
        raise RemoteProtocolError(f"lesson holds {min(tensors)[:60]!r}, which is no part of it")
    return RecommenderLesson(CloudModel(model.eval(), basis, cloud.encoder), titles)


def _fill(name: str, part: nn.Module, tensors: dict[str, Tensor]) -> None:
    state = part.state_dict()
    for key, value in state.items():
        given = tensors.pop(f"{name}.{key}", None)
        if given is None or given.shape != value.shape or given.dtype != value.dtype:
            raise RemoteProtocolError(f"lesson has no {name}.{key} of shape {tuple(value.shape)}")
        if not bool((given.abs() <= LARGEST_VALUE).all()):
            raise RemoteProtocolError(f"lesson's {name}.{key} holds NaN, infinity or values beyond {LARGEST_VALUE:g}")
        state[key] = given
    part.load_state_dict(state, assign=True)
