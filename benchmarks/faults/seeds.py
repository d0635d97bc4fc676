"""Play so many seeds of a campaign, for `python -m benchmarks compiled`, which compares states of the code.

Only mdl is imported, from wherever PYTHONPATH leads. It prints one line of JSON.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time

from mdl.peers.trials.campaign import Campaign, seldom_collected, silent_machines
from mdl.peers.trials.run_plan import run_guarded


def main(count: int) -> None:
    """Print seconds of processor time, and a digest of the verdicts."""
    told, campaign = hashlib.sha256(), Campaign(wide=True, exchange="any", compress="any")
    with silent_machines(), seldom_collected():
        began = time.process_time()
        for seed in range(count):
            told.update(repr(run_guarded(campaign.plan(seed))).encode())
        print(json.dumps({"seconds": time.process_time() - began, "digest": told.hexdigest()}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
