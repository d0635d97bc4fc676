"""What devices say to each other, what a machine is, and what a round exchanges."""
