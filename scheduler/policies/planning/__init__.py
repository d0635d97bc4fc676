"""Plans the rest of a round anew at every decision: exactly, or by playing out what may come."""
