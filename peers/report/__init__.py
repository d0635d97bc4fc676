"""The report of a run beside its model: a card, and pictures."""
