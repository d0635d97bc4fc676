"""The built-in networks that are not a CNN by its sizes (`mdl.learning.cnn`)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mdl.learning.cnn import convolve
from mdl.learning.recurrent import run_recurrent


def build_fcn(channels: int, time: int, classes: int) -> nn.Module:
    """Build a network of convolutions, then the mean over time: as many parameters for windows of any length.

    The shape is that of Wang et al. 2017 (arXiv 1611.06455), with pooling between and a third of the filters: 43,000
    parameters for 9 channels and 6 classes.
    """
    return nn.Sequential(
        nn.BatchNorm1d(channels),
        *convolve(channels, 32, kernel=9),
        *convolve(32, 64, kernel=9),
        *convolve(64, 64, kernel=5),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(64, classes),
    )


class CnnLstm(nn.Module):
    """The paper's hybrid: convolutions find motifs, a two-layer LSTM reads their order.

    11.6 M parameters, 46.4 MB, for 9 x 128 windows and 6 classes: the size MDLdroid measures its traffic with.
    """

    def __init__(self, channels: int, time: int, classes: int) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.BatchNorm1d(channels), *convolve(channels, 64, kernel=5), *convolve(64, 128, kernel=5)
        )
        self.lstm = nn.LSTM(128, 922, num_layers=2, batch_first=True)
        self.dropout = nn.Dropout(0.5)
        self.dense = nn.Linear(922, 922)
        self.classify = nn.Linear(922, classes)

    def forward(self, x: Tensor) -> Tensor:
        steps, _ = run_recurrent(self.lstm, self.convolutions(x).transpose(1, 2))
        logits: Tensor = self.classify(self.dropout(torch.relu(self.dense(steps[:, -1]))))
        return logits
