"""A next-word model on disk, with its table of words: one safetensors file.

Such a file may come from anybody: its description is data, and nothing is built that is larger than the tensors beside
it. A person's own model holds their words; it is written for them alone, like every file of mdl.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import torch
from numpy.typing import NDArray

from mdl.bounds import Count
from mdl.errors import DataError
from mdl.files.checkpoint import read_safetensors, write_safetensors
from mdl.personal.words.next_word import NextWordModel, NextWordSize, size_of
from mdl.personal.words.text import MOST_WORDS, TokenTable, Word
from mdl.reading import decode_json


class NextWordFile(msgspec.Struct, frozen=True):
    """The parameters' description. trained_words: of the global text; personal_words: of one person's, 0 if none.

    base: names the shared model that a personal one began with, or was brought to; "" if it is not known. own_words:
    words of the table that came from the person.
    """

    size: NextWordSize
    table: TokenTable
    trained_words: Count = 0
    personal_words: Count = 0
    base: Annotated[str, msgspec.Meta(max_length=64)] = ""
    own_words: Annotated[tuple[Word, ...], msgspec.Meta(max_length=MOST_WORDS)] = ()


def save_next_word(
    path: Path,
    model: NextWordModel,
    table: TokenTable,
    trained_words: int = 0,
    personal_words: int = 0,
    base: str = "",
    own_words: tuple[str, ...] = (),
) -> None:
    """Write the model. Raises MdlError if the disk refuses."""
    described = NextWordFile(size_of(model), table, trained_words, personal_words, base, own_words)
    arrays: dict[str, NDArray[Any]] = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    write_safetensors(path, arrays, {"next_word": msgspec.json.encode(described).decode(), "format": "pt"})


def load_next_word(path: Path) -> tuple[NextWordModel, NextWordFile]:
    """Read the model. Raises DataError that names the file if it is missing, torn, or no next-word model."""
    arrays, metadata = read_safetensors(path)
    described = decode_json(metadata.get("next_word", ""), NextWordFile, f"{path} is no next-word model of mdl")
    size, table = described.size, described.table
    if (size.classes, size.tokens) != (table.classes, table.size):
        raise DataError(f"{path}: {size.classes} classes, and a table of {table.classes}")
    with torch.device("meta"):
        model = NextWordModel(size)
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if shapes != {name: array.shape for name, array in arrays.items()}:
        raise DataError(f"{path}: its tensors do not fit its description")
    if any(array.dtype.name != "float32" for array in arrays.values()):
        raise DataError(f"{path}: its tensors are not float32")
    model.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()}, assign=True)
    return model.requires_grad_(True).eval(), described
