"""Adapters on four devices beside the same in one place: perplexity on held-out texts, and bytes a round.

    python -m benchmarks lora TEXTS.zip --base-steps 250 --rounds 8

A base is trained on two topics, adapters on a third one: by `examples/lora_text.py` in processes of this machine, each
with its share of the texts; and here with all of them, the same number of steps with batches as large as theirs
together.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

from benchmarks.tool.machine import ROOT
from benchmarks.tool.options import Namespace, Parser, add_rounds
from benchmarks.tool.sheet import Sheet

EXAMPLES = ROOT / "examples"
sys.path.insert(0, str(EXAMPLES))

from small_gpt import SmallGpt, adapt, cut, loss_of, perplexity, read_texts  # type: ignore[import-not-found] # noqa: E402

from mdl.transport.trust.keys import new_join_code  # noqa: E402

TOPIC, DEVICES = "sport", 4
STEPS, BATCH, RATE = 10, 8, 3e-3  # as of the example


def add_options(parser: Parser) -> None:
    parser.add_argument("texts")
    parser.add_argument("--base-steps", type=int, default=250)
    add_rounds(parser, 8)


def run(given: Namespace, sheet: Sheet) -> None:
    """Train the base, then adapters in a mesh and in one place."""
    torch.set_num_threads(2)
    texts = read_texts(given.texts, TOPIC)
    held_out, rows = cut(texts[-len(texts) // 5 :]), cut(texts[: -len(texts) // 5])
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder) / "base.safetensors"
        began = time.monotonic()
        model = train_base(given.texts, given.base_steps)
        save_file(model.state_dict(), base)
        print(f"base: {perplexity(model, held_out):.4f} on {TOPIC} after {time.monotonic() - began:.0f} s", flush=True)
        said = train_mesh(Path(folder), given.texts, base, given.rounds)
        central = adapt(model)
        train(central, rows, given.rounds * STEPS, DEVICES * BATCH, RATE)
        print("\n".join(said))
        sheet.tell({"central": round(perplexity(central, held_out), 4), "mesh": said})


def train_base(texts: str, steps: int) -> SmallGpt:
    torch.manual_seed(0)
    model = SmallGpt()
    train(model, cut(read_texts(texts, "business") + read_texts(texts, "politics")), steps, 32, 3e-3)
    return model


def train(model: torch.nn.Module, rows: torch.Tensor, steps: int, batch: int, rate: float) -> None:
    picked = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=rate)
    for _ in range(steps):
        loss = loss_of(model, rows[torch.randint(len(rows), (batch,), generator=picked)])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def train_mesh(folder: Path, texts: str, base: Path, rounds: int) -> list[str]:
    """What each device says at its end."""
    home = {"HOME": str(folder), "XDG_STATE_HOME": f"{folder}/state", "XDG_CONFIG_HOME": f"{folder}/config"}
    environment = {**os.environ, **home, "MDL_CODE": new_join_code("lora"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(EXAMPLES / "lora_text.py")]
    tail = [str(DEVICES), texts, "--base", str(base), "--rounds", str(rounds), "--loopback"]
    # An agent that waits for all of them: otherwise two begin while the others still start.
    agent = [sys.executable, "-m", "mdl", "agent", "--loopback", "--rounds", str(rounds)]
    several = ["--set", f"round.min_peers={DEVICES}", "--out", str(folder / "agent")]
    processes = [subprocess.Popen([*agent, *several], env=environment, stderr=subprocess.DEVNULL, text=True)]
    for device in range(1, DEVICES + 1):
        devices = [*command, str(device), *tail]
        processes.append(subprocess.Popen(devices, env=environment, stdout=subprocess.PIPE, text=True))
    try:
        said = [process.communicate(timeout=1200)[0] for process in processes[1:]]
    finally:
        for process in processes:
            process.terminate()
            process.wait()
    return [line for text in said for line in text.splitlines()]
