"""The log and the model that the tests of recommending have."""

from tests.peers.dccl.model.conftest import cloud, log

__all__ = ["cloud", "log"]
