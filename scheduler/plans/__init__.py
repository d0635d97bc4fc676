"""Plans of a whole round: who owns which segments. What decides pair by pair is in `mdl.scheduler.policies`."""
