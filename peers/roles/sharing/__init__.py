"""Both sides of a sharing of windows between one person's devices: the giver, and the taker."""
