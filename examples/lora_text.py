"""LoRA on a mesh: a frozen language model on each device, and only its adapters travel.

    python examples/lora_text.py DEVICE COUNT TEXTS --base BASE.safetensors [--topic sport] [--rounds 8] [--loopback]

on each of COUNT devices. TEXTS: a zip or a folder of .txt files in folders by topic, of which this device takes its
share. BASE: weights of `small_gpt.py`'s model, the same on every device; without it the base is random.
"""

import argparse
import sys

import torch
from safetensors.torch import load_file
from small_gpt import SmallGpt, adapt, cut, loss_of, perplexity, read_texts

import mdl
from mdl.errors import MdlError

STEPS, BATCH, RATE = 10, 8, 3e-3  # of one round

options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
options.add_argument("device", type=int)
options.add_argument("count", type=int)
options.add_argument("texts")
options.add_argument("--base")
options.add_argument("--topic", default="sport")
options.add_argument("--rounds", type=int, default=8)
options.add_argument("--loopback", action="store_true")
chosen = options.parse_args()

torch.manual_seed(0)
model = SmallGpt()
if chosen.base:
    model.load_state_dict(load_file(chosen.base))
model = adapt(model)
texts = read_texts(chosen.texts, chosen.topic)
held_out = cut(texts[-len(texts) // 5 :])  # the same on all devices
rows = cut(texts[: -len(texts) // 5][chosen.device - 1 :: chosen.count])
picked = torch.Generator().manual_seed(chosen.device)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=RATE)
before, sent = perplexity(model, held_out), []

try:
    with mdl.join(
        model=model,
        optimizer=optimizer,
        rounds=chosen.rounds,
        name=f"lora-{chosen.device}",
        loopback=chosen.loopback,
        progress=lambda done: sent.append(done.sent_bytes),
    ) as mesh:
        for this in mesh:
            for _ in range(STEPS):
                loss = loss_of(model, rows[torch.randint(len(rows), (BATCH,), generator=picked)])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            this.loss, this.samples = loss.item(), STEPS * BATCH
except MdlError as problem:
    sys.exit(f"lora_text: {problem}")
trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
whole = sum(p.numel() for p in model.parameters())
print(f"perplexity {before:.4f} -> {perplexity(model, held_out):.4f} after {mesh.round_id} rounds")
print(f"{4 * trained:,} bytes of adapters, {4 * whole:,} of the model; sent a round: {sorted(sent)[len(sent) // 2]:,}")
