"""`import mdl.gym` registers `mdl/Chain-v0` and `mdl/ChainPaper-v0` with Gymnasium (the extra `train`)."""

from mdl.scheduler.paper.env import PAPER_ENV_ID
from mdl.scheduler.training.env import CHAIN_ENV_ID

__all__ = ["CHAIN_ENV_ID", "PAPER_ENV_ID"]
