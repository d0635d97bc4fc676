"""Rounds that leave devices out: rules that say which devices take part, and a simulation that judges them."""
