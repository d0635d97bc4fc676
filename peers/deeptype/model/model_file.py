"""A next-word model on disk, with its table of words: one safetensors file, or an ONNX graph for other programs.

A safetensors file may come from anybody: its description is data, and nothing is built that is larger than the tensors
beside it. A person's own model holds their words; it is written for them alone, like every file of mdl.

The ONNX graph is for a keyboard without Python: one character or word a run, state in and out.

    tokens int64 (batch, steps), hidden and cell float32 (layers, batch, units)
      -> logits (batch, steps, classes), features (batch, steps, units), hidden and cell after the last step

Built from ONNX's own operators, so that the package `onnx` alone is needed (`pip install mdl[onnx]`); factored layers
are two products. The table of words is in the file's metadata, as JSON under "table".
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mdl.bounds import Count
from mdl.errors import ConfigError, DataError
from mdl.files.checkpoint import read_safetensors, write_safetensors
from mdl.peers.deeptype.model.compression import FactoredEmbedding, FactoredLinear
from mdl.peers.deeptype.model.next_word import NextWordModel, NextWordSize, size_of
from mdl.peers.deeptype.model.text import MOST_WORDS, TokenTable, Word
from mdl.reading import decode_json
from mdl.writing import write_bytes

# LSTM with initial states and one direction is the same since 14; runtimes of 2021 know it.
_OPSET, _IR = 14, 8


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


def save_onnx(path: Path, model: NextWordModel, table: TokenTable) -> None:
    """Write the graph. Raises ConfigError if `onnx` is not installed, MdlError if the disk refuses."""
    try:
        from onnx import TensorProto, helper, numpy_helper  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        raise ConfigError("ONNX needs a package more: pip install 'mdl[onnx]'; or export FILE.safetensors") from None
    graph = _Graph(helper, numpy_helper)
    h, n = model.hidden, model.layers
    _embed(graph, model.embed)
    graph.add("Transpose", ["embedded"], ["0"], perm=[1, 0, 2])
    for name in ("hidden", "cell"):
        graph.add("Split", [name], [f"{name}.{layer}" for layer in range(n)], axis=0)
    for layer in range(n):
        _run_layer(graph, model.lstm, layer)
    for name in ("hidden", "cell"):
        graph.add("Concat", [f"{name}.{layer}.out" for layer in range(n)], [f"{name}_out"], axis=0)
    graph.add("Transpose", [str(n)], ["features"], perm=[1, 0, 2])
    _rank(graph, model.output)
    real, state = TensorProto.FLOAT, [n, "batch", h]
    inputs = [helper.make_tensor_value_info("tokens", TensorProto.INT64, ["batch", "steps"])]
    inputs += [helper.make_tensor_value_info(name, real, state) for name in ("hidden", "cell")]
    outputs = [helper.make_tensor_value_info("logits", real, ["batch", "steps", table.classes])]
    outputs += [helper.make_tensor_value_info("features", real, ["batch", "steps", h])]
    outputs += [helper.make_tensor_value_info(f"{name}_out", real, state) for name in ("hidden", "cell")]
    made = helper.make_model(
        helper.make_graph(graph.nodes, "next_word", inputs, outputs, graph.values),
        opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR, producer_name="mdl",
    )  # fmt: skip
    helper.set_model_props(made, {"table": msgspec.json.encode(table).decode()})
    write_bytes(path, made.SerializeToString())


class _Graph:
    """Nodes and constants so far. helper, numpy_helper: of `onnx`."""

    def __init__(self, helper: Any, numpy_helper: Any) -> None:
        self.nodes: list[Any] = []
        self.values: list[Any] = []
        self._node, self._array = helper.make_node, numpy_helper.from_array

    def add(self, kind: str, inputs: list[str], outputs: list[str], **how: object) -> None:
        self.nodes.append(self._node(kind, inputs, outputs, **how))

    def constant(self, name: str, value: np.ndarray[Any, Any] | Tensor) -> str:
        array = value.detach().numpy() if isinstance(value, Tensor) else value
        self.values.append(self._array(np.ascontiguousarray(array), name))
        return name


def _embed(graph: _Graph, embed: nn.Module) -> None:
    if isinstance(embed, FactoredEmbedding):
        graph.add("Gather", [graph.constant("embed.rows", embed.table.weight), "tokens"], ["narrow_rows"])
        graph.add("MatMul", ["narrow_rows", graph.constant("embed.widen", embed.widen.weight.T)], ["embedded"])
    else:
        assert isinstance(embed, nn.Embedding)
        graph.add("Gather", [graph.constant("embed.rows", embed.weight), "tokens"], ["embedded"])


def _run_layer(graph: _Graph, lstm: nn.LSTM, layer: int) -> None:
    """Add a layer from (steps, batch, units) named `layer` to the one named `layer + 1`."""
    weights = [
        graph.constant(f"lstm.{layer}.{kind}", _gates(getattr(lstm, f"weight_{kind}_l{layer}"))[None])
        for kind in ("ih", "hh")
    ]
    biases = [_gates(getattr(lstm, f"bias_{kind}_l{layer}")) for kind in ("ih", "hh")]
    bias = graph.constant(f"lstm.{layer}.bias", np.concatenate(biases)[None])
    inputs = [str(layer), *weights, bias, "", f"hidden.{layer}", f"cell.{layer}"]
    outputs = [f"{layer}.directions", f"hidden.{layer}.out", f"cell.{layer}.out"]
    graph.add("LSTM", inputs, outputs, hidden_size=lstm.hidden_size)
    axis = graph.constant(f"lstm.{layer}.axis", np.array([1], np.int64))
    graph.add("Squeeze", [outputs[0], axis], [str(layer + 1)])


def _gates(value: Tensor) -> np.ndarray[Any, Any]:
    """Reorder gates: torch has input, forget, cell, output; ONNX input, output, forget, cell."""
    first, forget, cell, output = np.split(value.detach().numpy(), 4)
    return np.concatenate([first, output, forget, cell])


def _rank(graph: _Graph, layer: nn.Module) -> None:
    seen, last = "features", layer
    if isinstance(layer, FactoredLinear):
        graph.add("MatMul", [seen, graph.constant("output.narrow", layer.narrow.weight.T)], ["narrow_features"])
        seen, last = "narrow_features", layer.widen
    assert isinstance(last, nn.Linear)
    graph.add("MatMul", [seen, graph.constant("output.weight", last.weight.T)], ["unbiased"])
    graph.add("Add", ["unbiased", graph.constant("output.bias", last.bias)], ["logits"])
