"""A trained model for other programs: ONNX, torch.export or the bare parameters, each compared with the model.

A file with other results than the model is worse than none: one that differs by more than TOLERANCE is not kept.
"""

from __future__ import annotations

import importlib.util
import logging
import math
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from mdl.errors import ConfigError, DataError, MdlError
from mdl.files.checkpoint import read_safetensors
from mdl.files.export import ModelDescription, export_model, find_model_file
from mdl.learning.evaluation import predict_logits
from mdl.learning.flat import unwrap
from mdl.learning.models import Numbers
from mdl.own import Own
from mdl.peers.use.inference import load_model
from mdl.task import Targets, describe_rate
from mdl.writing import write_whole

# The largest difference of logits: runtimes order their sums otherwise, and float32 has seven digits.
TOLERANCE = 1e-4
# The number of compared windows, drawn from a normal distribution: a built-in model normalises its input.
_COMPARED = 1000
# The most values in them: 64 MB. That allows 111 images of 3 x 224 x 224.
_MOST_COMPARED = 1 << 24
# The outputs, in words for the card.
_OUTPUTS: dict[Targets, str] = {
    "classes": "logits (n, {}); softmax makes probabilities",
    "labels": "logits (n, {}); the sigmoid makes each label's probability, and above 0.5 it holds",
    "numbers": "numbers (n, {}), in their units",
}
_SAYS: dict[Targets, str] = {
    "classes": "says one of its classes of",
    "labels": "says which of its labels hold of",
    "numbers": "gives numbers for",
}
_ENDINGS = {"safetensors": ".safetensors", "onnx": ".onnx", "torch": ".pt2"}
_ONNX_NEEDS = ("onnx", "onnxscript")


def with_ending(out: Path, form: str) -> Path:
    """Return the file's name with the ending of its form. Raises ConfigError for the ending of another form."""
    if out.suffix == _ENDINGS[form]:
        return out
    if out.suffix in _ENDINGS.values():
        other = next(name for name, ending in _ENDINGS.items() if ending == out.suffix)
        raise ConfigError(f"--out {out}: {form} ends in {_ENDINGS[form]}; --format {other} writes {out.suffix}")
    return out.with_name(out.name + _ENDINGS[form])


def export_portable(path: Path, form: str, out: Path | None, model: str | Own | None = None) -> dict[str, Any]:
    """Write the model at `path` in `form`, and a card beside it. Raises ConfigError if a package is missing."""
    module, description = load_model(path, model)
    file = find_model_file(path)
    target = with_ending(out, form) if out else file.with_suffix(_ENDINGS[form])
    if target.exists() and target.resolve() == file.resolve():
        raise ConfigError(f"{target} is the model itself; say where to with --out")
    if form == "safetensors":
        export_model(target, module, description)
        checked = _check_parameters(target, module)
    else:
        aside = target.with_name(f".{target.name}.{os.getpid()}{target.suffix}")
        try:
            checked = (
                _write_onnx(aside, module, description) if form == "onnx" else _write_torch(aside, module, description)
            )
            aside.replace(target)
        except OSError as error:
            raise MdlError(f"{target}: {error.strerror}") from None
        finally:
            aside.unlink(missing_ok=True)
    card = target.with_name(f"{target.name}.md")
    write_whole(card, lambda into: into.write(describe_model(module, description, target.name).encode()))
    return {
        "model": description.model, "format": form, "file": str(target), "card": str(card),
        "size_bytes": target.stat().st_size, "checked": checked,
    }  # fmt: skip


def describe_model(module: nn.Module, description: ModelDescription, name: str) -> str:
    """Return a card in Markdown: input, output, origin, and what nobody has claimed of the model."""
    count = sum(parameter.numel() for parameter in module.parameters())
    channels = ", ".join(description.channel_names) or f"{description.channels}, without names"
    rate = describe_rate(description.rate_hz) if description.rate_hz else "not known"
    axes = "windows, channels, samples" if description.height is None else "images, channels, height, width"
    units = "in the units of the training data" if description.height is None else "pixels of 0 to 255 divided by 255"
    lines = [
        f"# {name}", "",
        f"A model of mdl: `{description.model}`, {count:,} parameters, after round {description.round_id} of the mesh "
        f"{description.mesh or '(none)'}.", "",
        "| | |", "|---|---|",
        f"| input | float32 (n, {', '.join(map(str, description.shape))}): {axes} |",
        f"| channels, in this order | {channels} |",
        *([f"| samples a second | {rate} |"] if description.height is None else []),
        f"| output | {_OUTPUTS[description.targets].format(description.classes)} |",
        f"| {description.targets}, in this order | {', '.join(description.outputs)} |",
        f"| trained on | {description.data or 'not said'} (as it was called there), seed {description.seed} |", "",
        f"Values go in as they were recorded, {units}; what else is to be normalised the model does itself.", "",
        "`mdl eval`, with recordings that have labels, tells its accuracy on your data. It was trained on recordings "
        "of "
        f"the people in its mesh alone, and {_SAYS[description.targets]} whatever it is given.", "",
    ]  # fmt: skip
    return "\n".join(lines)


def _example(description: ModelDescription) -> np.ndarray[Any, np.dtype[np.float32]]:
    count = min(_COMPARED, max(2, _MOST_COMPARED // math.prod(description.shape)))
    return np.random.default_rng(0).normal(size=(count, *description.shape)).astype(np.float32)


def _check_parameters(target: Path, module: nn.Module) -> str:
    stored = read_safetensors(target)[0]
    if any(not np.array_equal(stored[name], tensor.numpy()) for name, tensor in module.state_dict().items()):
        raise DataError(f"{target} differs from the model")
    return "equal to the model's parameters"


def _compare(found: np.ndarray[Any, Any], module: nn.Module, x: np.ndarray[Any, Any], where: str) -> str:
    wanted, inner = predict_logits(module, x), unwrap(module)
    # Differences of numbers are measured by their spread.
    scale = inner.scale().detach().numpy() if isinstance(inner, Numbers) else 1.0
    away = float(np.abs((found - wanted) / scale).max())
    if not away <= TOLERANCE:
        raise MdlError(
            f"{where} gives logits that differ by {away:.2g} from the model's, more than {TOLERANCE:g}: not kept"
        )
    return f"on {len(x):,} windows within {away:.1e} of the model in {where}"


def _write_torch(target: Path, module: nn.Module, description: ModelDescription) -> str:
    x = _example(description)
    batch = torch.export.Dim("n")
    with _quietly():
        exported = torch.export.export(module.eval(), (torch.from_numpy(x[:2]),), dynamic_shapes=({0: batch},))
        torch.export.save(exported, target)
        # This process has just written the file, and no other has.
        again = torch.export.load(target).module()
    with torch.no_grad():
        return _compare(again(torch.from_numpy(x)).numpy(), module, x, "torch.export")


def _write_onnx(target: Path, module: nn.Module, description: ModelDescription) -> str:
    if missing := [name for name in _ONNX_NEEDS if not _is_installed(name)]:
        raise ConfigError(f"--format onnx needs {' and '.join(missing)}: pip install 'mdl[onnx]'")
    x, output = _example(description), "numbers" if description.targets == "numbers" else "logits"
    with _quietly():
        torch.onnx.export(
            module.eval(), (torch.from_numpy(x[:2]),), str(target), input_names=["windows"], output_names=[output],
            dynamic_shapes=({0: torch.export.Dim("n")},), dynamo=True, external_data=False, verbose=False,
        )  # fmt: skip
    if not _is_installed("onnxruntime"):
        return "not compared: onnxruntime is not installed"
    import onnxruntime

    session = onnxruntime.InferenceSession(str(target), providers=["CPUExecutionProvider"])
    return _compare(session.run(None, {"windows": x})[0], module, x, "onnxruntime")


@contextmanager
def _quietly() -> Iterator[None]:
    """Silence torch's messages about its own parts; the comparison shows if the result is right."""
    log = logging.getLogger("torch")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)


def _is_installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None
