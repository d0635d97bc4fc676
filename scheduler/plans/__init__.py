"""Plans of a whole round: the owners of its segments. `mdl.scheduler.policies` decides pair by pair."""
