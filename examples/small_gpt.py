"""A causal language model of bytes, small enough for any device, and rank-8 adapters (LoRA, arXiv 2106.09685) on it."""

import io
import zipfile
from pathlib import Path

import torch
from torch import Tensor, nn

CONTEXT, WIDTH, LAYERS, HEADS, RANK = 96, 96, 2, 4, 8


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.mix, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        many, length, _ = x.shape
        parts = self.mix(self.norms[0](x)).view(many, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(many, length, WIDTH))
        return x + self.down(nn.functional.gelu(self.up(self.norms[1](x))))


class SmallGpt(nn.Module):
    """tokens: int64 (n, time) of bytes -> logits (n, time, 256)."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x)))


class Adapted(nn.Module):
    """A frozen linear layer and B A beside it. A is frozen too: the mean of devices' B A is then (mean of B) A."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer
        self.a = nn.Parameter(torch.randn(RANK, layer.in_features) / layer.in_features**0.5, requires_grad=False)
        self.b = nn.Parameter(torch.zeros(layer.out_features, RANK))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + (x @ self.a.T) @ self.b.T


def adapt(model: SmallGpt, seed: int = 0) -> SmallGpt:
    """Freeze the model and put an adapter on each linear layer of its blocks; the same seed gives the same A."""
    torch.manual_seed(seed)
    model.requires_grad_(False)
    for block in model.blocks:
        for name in ("mix", "out", "up", "down"):
            setattr(block, name, Adapted(getattr(block, name)))
    return model


def read_texts(path: str, topic: str) -> list[bytes]:
    """The .txt files whose path names the topic, in the order of their names, from a zip or a folder."""
    if Path(path).is_dir():
        return [file.read_bytes() for file in sorted(Path(path).rglob(f"*{topic}*/*.txt"))]
    with zipfile.ZipFile(io.BytesIO(Path(path).read_bytes())) as file:
        return [file.read(name) for name in sorted(file.namelist()) if f"/{topic}/" in name and name.endswith(".txt")]


def cut(texts: list[bytes]) -> Tensor:
    """uint8 (n, CONTEXT + 1): what to read, and what comes after each byte of it."""
    whole = torch.frombuffer(bytearray(b"\n".join(texts)), dtype=torch.uint8)
    return whole[: len(whole) // (CONTEXT + 1) * (CONTEXT + 1)].view(-1, CONTEXT + 1)


def loss_of(model: nn.Module, rows: Tensor) -> Tensor:
    """Cross-entropy of the next byte, in nats."""
    rows = rows.long()
    return nn.functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())


def perplexity(model: nn.Module, rows: Tensor) -> float:
    """Of a byte, over at most 512 rows."""
    with torch.no_grad():
        losses = [loss_of(model, part) for part in rows[:512].split(64)]
    return float(torch.stack(losses).mean().exp())
