"""Learning from another model's probabilities (Colla, Eq. 2)."""

from __future__ import annotations

import torch
from torch import Tensor


def soft_cross_entropy(logits: Tensor, teacher: Tensor, temperature: float = 1.0) -> Tensor:
    """Return Eq. 2: -T^2 mean_n sum_k q_nk log softmax(z_n / T)_k, a scalar. No gradient reaches the teacher.

    logits: (n, K) of the student; teacher: q, (n, K), softened with the same T. T^2 keeps the gradient's size.
    """
    log_p = torch.log_softmax(logits / temperature, dim=-1)
    return -(temperature**2) * (teacher.detach() * log_p).sum(dim=-1).mean()
