"""Recommendation by device-cloud collaboration (DCCL, KDD 2021): a device's patches are made of its one vector."""
