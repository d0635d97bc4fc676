"""One person's devices share data: what they say to each other, and the work that follows."""
