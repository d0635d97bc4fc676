"""The same in one call: model, optimizer, data and loss; the mesh does the rounds, on two devices or more."""

import sys

import torch
from torch import nn

import peers

x = torch.randn(512, 10)
batches = list(zip(x.split(32), (x.sum(1) > 0).long().split(32), strict=True))
model = nn.Linear(10, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loss = nn.functional.cross_entropy
peers.join(model=model, optimizer=optimizer, data=batches, loss=loss, loopback="--loopback" in sys.argv).run()
