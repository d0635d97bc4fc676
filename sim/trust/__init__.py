"""Who is in a simulated mesh: rosters that are told over its network, and what a revocation must come to."""
