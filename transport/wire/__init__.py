"""How one message, or one vector, gets from a device to another."""
