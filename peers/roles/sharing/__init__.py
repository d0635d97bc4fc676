"""Both sides of a sharing of windows between one person's devices: who gives, and who takes."""
