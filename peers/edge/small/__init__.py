"""What keeps a node small on a small computer: memory that is given back, and what need not be loaded yet."""
