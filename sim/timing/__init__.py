"""How long one iteration takes on simulated devices, and what it costs."""
