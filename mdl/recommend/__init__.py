"""Recommendation by device-cloud collaboration (DCCL, KDD 2021): one vector a device makes its patches."""
