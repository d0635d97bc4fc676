"""`import mdl.gym` registers the environments of the scheduler with Gymnasium (the extra `train`).

They are `mdl/Chain-v0`, `mdl/ChainPaper-v0` and `mdl/Rounds-v0`.
"""

from mdl.scheduler.paper.env import PAPER_ENV_ID
from mdl.scheduler.rounds.env import ROUNDS_ENV_ID
from mdl.scheduler.training.env import CHAIN_ENV_ID

__all__ = ["CHAIN_ENV_ID", "PAPER_ENV_ID", "ROUNDS_ENV_ID"]
