"""One person's own model on this device: learning it, typing with it, its costs, and forgetting it."""
