"""What goes wrong on a simulated mesh, and when: drawn from a seed, saved, made shorter."""
