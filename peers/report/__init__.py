"""What a run leaves for people beside its model: a card, and pictures."""
