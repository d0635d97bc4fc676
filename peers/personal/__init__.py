"""One person's own model on this device: learning it, typing with it, what it takes, and forgetting it."""
