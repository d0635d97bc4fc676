"""The gradient of the Q-network in plain NumPy, and Adam: a device that re-learns beside the mesh loads no torch.

Importing torch and its optimizer takes 270 MB and 2.3 s of processor time, more than a slot of learning itself. Layers
and pools are those of `mdl.scheduler.policies.qnet_numpy`; a test compares the gradient with that of
`mdl.scheduler.training.qnet_torch`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mdl.scheduler.policies.chain_arrays import Bools, Floats
from mdl.scheduler.policies.features import COLUMN
from mdl.scheduler.policies.qnet_numpy import Weights

_MAY_PICK = COLUMN["may_pick"]
# Adam (Kingma and Ba, 2015), as in torch.optim.
_BETAS, _EPSILON = (0.9, 0.999), 1e-8
# Longest gradient (L2) of one update.
_LONGEST = 5.0
Backward = Callable[[Floats], Floats]


class Passes:
    """One pass through the network and back: `forward`, and then `backward` once.

    q (B, M + 1) of features (B, M, F); exists: (B, M). Invalid picks have a value as well: the loss leaves them out.
    """

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._gradients: Weights = {}
        self._back: Callable[[Floats], None] = lambda gradient: None

    def forward(self, features: Floats, exists: Bools) -> Floats:
        masks = (exists[:, :, None].astype(np.float32), (features[:, :, _MAY_PICK] > 0)[:, :, None].astype(np.float32))
        encoded, back1 = self._rectified("encode1", features)
        hidden, back2 = self._rectified("encode2", encoded)
        backs = []
        for around, own in (("around1", "own1"), ("around2", "own2")):
            hidden, back = self._mix(around, own, hidden, masks)
            backs.append(back)
        advantage, back_advantage = self._layer("advantage", hidden)
        pooled, back_pool = _pool(hidden, masks)
        inner, back_inner = self._rectified("state1", pooled)
        state, back_state = self._layer("state2", inner)
        q = np.concatenate([advantage[:, :, 0], state[:, 1:]], axis=1) + state[:, :1]

        def back_all(gradient: Floats) -> None:
            of_state = np.stack([gradient.sum(axis=1), gradient[:, -1]], axis=1)
            of_hidden = back_pool(back_inner(back_state(of_state)))
            of_hidden += back_advantage(np.ascontiguousarray(gradient[:, :-1, None]))
            for back in reversed(backs):
                of_hidden = back(of_hidden)
            back1(back2(of_hidden))

        self._back = back_all
        return q

    def backward(self, gradient: Floats) -> Weights:
        """Return the gradient of the loss by each weight; gradient: of the loss by q, (B, M + 1)."""
        self._gradients = {}
        self._back(gradient)
        return self._gradients

    def _mix(self, around: str, own: str, hidden: Floats, masks: tuple[Floats, Floats]) -> tuple[Floats, Backward]:
        """Mix each device with the pools over all: ReLU of both layers' sum."""
        mine, back_own = self._layer(own, hidden)
        pooled, back_pool = _pool(hidden, masks)
        context, back_around = self._layer(around, pooled)
        mine += context[:, None, :]
        mixed = np.maximum(mine, 0.0)

        def back(gradient: Floats) -> Floats:
            gradient = gradient * (mixed > 0.0)
            of_hidden = back_own(gradient)
            of_hidden += back_pool(back_around(gradient.sum(axis=1)))
            return of_hidden

        return mixed, back

    def _rectified(self, name: str, values: Floats) -> tuple[Floats, Backward]:
        linear, back_layer = self._layer(name, values)
        out = np.maximum(linear, 0.0)
        return out, lambda gradient: back_layer(gradient * (out > 0.0))

    def _layer(self, name: str, values: Floats) -> tuple[Floats, Backward]:
        weight = self._weights[f"{name}.weight"]
        flat = values.reshape(-1, values.shape[-1])
        out: Floats = flat @ weight.T
        out += self._weights[f"{name}.bias"]

        def back(gradient: Floats) -> Floats:
            rows = gradient.reshape(-1, gradient.shape[-1])
            self._gradients[f"{name}.weight"] = rows.T @ flat
            self._gradients[f"{name}.bias"] = rows.sum(axis=0)
            of_values: Floats = (rows @ weight).reshape(values.shape)
            return of_values

        return out.reshape(*values.shape[:-1], -1), back


def _pool(values: Floats, masks: tuple[Floats, Floats]) -> tuple[Floats, Backward]:
    """Return mean and maximum (B, 4 H) of values (B, M, H) over each mask (B, M, 1)."""
    parts, halves = [], []
    for mask in masks:
        masked, count = values * mask, np.maximum(1.0, mask.sum(axis=1))
        largest = masked.max(axis=1)
        at = (masked == largest[:, None, :]).astype(np.float32)
        at *= mask / at.sum(axis=1, keepdims=True)  # equals share the gradient of a maximum
        parts += [masked.sum(axis=1) / count, largest]
        halves.append((mask / count[:, None, :], at))

    def back(gradient: Floats) -> Floats:
        means, maxima = gradient.reshape(len(gradient), len(masks), 2, -1).transpose(2, 1, 0, 3)
        of_values = np.zeros_like(values)
        for (mean, at), of_mean, of_maximum in zip(halves, means, maxima, strict=True):
            of_values += mean * of_mean[:, None, :]
            of_values += at * of_maximum[:, None, :]
        return of_values

    return np.concatenate(parts, axis=1), back


class Adam:
    """Changes these weights in place, like `torch.optim.Adam` after `clip_grad_norm_`."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._means = {name: np.zeros_like(values) for name, values in weights.items()}
        self._squares = {name: np.zeros_like(values) for name, values in weights.items()}
        self._steps = 0

    def step(self, gradients: Weights, rate: float) -> None:
        self._steps += 1
        length = float(np.sqrt(sum(float(np.square(each, dtype=np.float64).sum()) for each in gradients.values())))
        scale = np.float32(min(1.0, _LONGEST / (length + 1e-6)))
        first, second = (1.0 - beta**self._steps for beta in _BETAS)
        for name, values in self._weights.items():
            gradient = gradients[name] * scale
            self._means[name] += (1.0 - _BETAS[0]) * (gradient - self._means[name])
            self._squares[name] += (1.0 - _BETAS[1]) * (np.square(gradient) - self._squares[name])
            width = np.sqrt(self._squares[name] / second) + _EPSILON
            values -= (rate / first) * self._means[name] / width
