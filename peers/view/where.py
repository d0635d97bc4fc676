"""`mdl predict --at`: predict the places of people in a log at a moment (Colla 2.1), by a device's own M-RNN."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from safetensors.torch import save
from torch import Tensor

from mdl.cloud.distillation import predict_probabilities
from mdl.cloud.model_kinds import RecurrentKind
from mdl.cloud.progress import PERSONAL
from mdl.cloud.recurrent import RecurrentModel, recurrent_shapes
from mdl.data.readers.places import PlaceLog, PlaceOptions, read_stays
from mdl.data.readers.visits import WINDOW_S, WINDOWS_A_DAY, WINDOWS_AN_HOUR, Stays, ask_next
from mdl.data.sources import parse_spec
from mdl.data.spec import read_options
from mdl.errors import ConfigError, DataError, RemoteProtocolError
from mdl.files.checkpoint import read_safetensors
from mdl.peers.view.console import PlainConsole

_CLOCK = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)")


def predict_places(path: Path, spec: str | None, at: str, limit: int) -> dict[str, Any]:
    """Return the likeliest place of the first `limit` people, after their log. at: see `parse_moment`.

    Raises ConfigError for an invalid moment or data without places, DataError for a model that does not fit.
    """
    source = parse_spec(spec or "places:")
    if source.source != "places" or not source.path:
        raise ConfigError("--at asks for a person's place: it needs --data places:PATH, the record up to now")
    options = read_options(source, PlaceOptions)
    parse_moment(at, 0)
    log = read_stays(source.path, options)
    kind, model = _load(path / PERSONAL if path.is_dir() else path, log)
    rows = []
    for name, stays in [(name, stays) for name, stays in log.stays.items() if len(stays)][:limit]:
        asked = parse_moment(at, _end(stays))
        if asked < _end(stays):
            raise ConfigError(f"--at {at}: {name}'s record goes on to {_tell(_end(stays))}; ask about a later moment")
        shares = predict_probabilities(model, torch.from_numpy(ask_next(stays, asked, options.steps)))[0]
        best = int(shares.argmax())
        place = log.places[int(kind.class_ids(model)[best])]
        rows.append({"person": name, "at": _tell(asked), "place": place, "probability": round(float(shares[best]), 4)})
    return {"model": str(path), "predictions": rows}


def show_places(result: dict[str, Any]) -> None:
    table = Table("person", "at", "place", "probability", box=None)
    for row in result["predictions"]:
        table.add_row(row["person"], row["at"], row["place"], f"{row['probability']:.1%}")
    PlainConsole().print(table)


def parse_moment(text: str, after: int) -> int:
    """Return the window of 10 minutes of a local date and time, or of a clock (9:00) after window `after`.

    Raises ConfigError that says what would be valid.
    """
    if found := _CLOCK.fullmatch(text):
        of_day = int(found[1]) * WINDOWS_AN_HOUR + int(found[2]) * 60 // WINDOW_S
        return after + (of_day - after) % WINDOWS_A_DAY
    try:
        return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) // WINDOW_S
    except ValueError:
        raise ConfigError(f"--at {text[:40]!r}: expected a time, as in 9:00, or 2026-05-04T09:00") from None


def _load(file: Path, log: PlaceLog) -> tuple[RecurrentKind, RecurrentModel]:
    arrays, metadata = read_safetensors(file)
    try:
        embedding, hidden = arrays["embed.0.weight"].shape[1], arrays["lstm.weight_hh_l0"].shape[1]
        # Check this before memory is taken: a tensor without a row may claim any width.
        for name, shape in recurrent_shapes(f"{embedding}-{hidden}", len(log.places), arrays["class_ids"].size).items():
            if arrays[name].shape != shape:
                raise DataError(f"{file} is no model of these {len(log.places)} places ({name} has another shape)")
        tensors: dict[str, Tensor] = {name: torch.from_numpy(array) for name, array in arrays.items()}
        kind = RecurrentKind(log.places, f"{embedding}-{hidden}", f"{embedding}-{hidden}")
        model = kind.unpack(save(tensors))
    except (KeyError, IndexError, RemoteProtocolError) as error:
        raise DataError(f"{file} is no model of these {len(log.places)} places ({error})") from None
    if (theirs := metadata.get("summary", "").partition(" -> ")[2]) and theirs != kind.summary.partition(" -> ")[2]:
        raise DataError(f"{file} knows other places ({theirs}): give the same file, or the same centre and cell")
    return kind, model


def _end(stays: Stays) -> int:
    return int(stays.start[-1] + stays.duration[-1])


def _tell(window: int) -> str:
    return datetime.fromtimestamp(window * WINDOW_S, UTC).strftime("%Y-%m-%d %H:%M")
