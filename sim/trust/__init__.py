"""The members of a simulated mesh: rosters that its network spreads, and the required effect of a revocation."""
