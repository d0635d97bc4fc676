"""The exchange of a cloud of recommenders and a device: the lesson, the vector, and the device's use of both.

The lesson is f, Theta, the encoder, and the names of items and of users' categories: one safetensors text. A reader
checks it fully before anything is built: a device takes no shape, number or name on trust. The vector in transit is
sixteen bytes that name the basis it was learned with, then little-endian float32.

One device has its own log in the cloud's numbers, its vector, and its suggestions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import msgspec
import numpy as np
import torch
from blake3 import blake3
from numpy.typing import NDArray
from safetensors.torch import save
from torch import Tensor, nn

from mdl.errors import DataError, RemoteProtocolError
from mdl.peers.colla.model.update_codec import decode_tensors
from mdl.peers.dccl.model.device_step import Basis, Junction, VectorSettings, learn_vectors, score_features
from mdl.peers.dccl.model.din import JUNCTIONS, Din, DinSettings
from mdl.peers.dccl.model.interactions import (
    MOST_FEATURES,
    Feature,
    Interactions,
    Name,
    Negatives,
    SampleEnds,
    histories,
    in_features_of,
)
from mdl.peers.dccl.model.momodistill import PROFILE_SIZE, CloudModel, Encoder
from mdl.protocol.delta import LARGEST_VALUE
from mdl.reading import decode_json

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


# The index of the lone user of a device.
_ME = 0


@dataclass(frozen=True)
class Suggestion:
    """An item and its score: the logit of a click."""

    item: str
    score: float


def in_numbers_of(lesson: RecommenderLesson, own: Interactions) -> Interactions:
    """Return a device's log with the cloud's item numbers, without items that the cloud lacks. Raises DataError.

    own: of one user. Only the parts of a profile that the cloud knows by the same names count.
    """
    numbers = {title: number for number, title in enumerate(lesson.titles, 1)}
    found = np.array([numbers.get(own.titles[item - 1], 0) for item in own.items], np.int64)
    known = found > 0
    if known.sum() < 2:
        raise DataError(f"{known.sum()} of this device's {len(found)} interactions are with items that the cloud knows")
    return replace(
        in_features_of(lesson.cloud.encoder.features, own),
        titles=lesson.titles,
        items=found[known],
        starts=np.array([0, known.sum()]),
        times=None if own.times is None else own.times[known],
    )


def learn_vector(
    lesson: RecommenderLesson,
    own: Interactions,
    former: NDArray[np.float32] | None,
    settings: VectorSettings,
    seed: int,
) -> Tensor:
    """Learn a vector (size,) by Eq. 3 from a device's latest clicks. former: the one of an earlier basis, or None."""
    cloud = lesson.cloud
    fits = former is not None and former.shape == (cloud.basis.size,)
    before = torch.from_numpy(former)[None] if fits and former is not None else torch.zeros(1, cloud.basis.size)
    start = cloud.warm_start(before, own.profiles)
    places = SampleEnds(np.full(len(own.items) - 1, _ME), np.arange(1, len(own.items)))
    negatives = Negatives.never_met(own)
    return learn_vectors(cloud.model, cloud.basis, start, own, places, negatives, settings, seed)[_ME]


@torch.no_grad()
def suggest(lesson: RecommenderLesson, own: Interactions, vector: Tensor | None, top: int) -> list[Suggestion]:
    """Return the items with the highest scores that this user has not met; vector None: by the cloud's model alone."""
    cloud, end = lesson.cloud, SampleEnds(np.array([_ME]), np.array([len(own.items)]))
    history = torch.from_numpy(histories(own, end, cloud.model.settings.history))
    fresh = np.setdiff1d(np.arange(1, len(lesson.titles) + 1), own.items)
    candidates = torch.from_numpy(fresh)[None]
    features = cloud.model.features(torch.tensor([_ME]), history, candidates)
    scores = score_features(cloud.model, cloud.basis, None if vector is None else vector[None], features)[0]
    found = torch.topk(scores, min(top, len(fresh)))
    return [
        Suggestion(lesson.titles[fresh[place] - 1], float(value))
        for value, place in zip(found.values, found.indices, strict=True)
    ]
