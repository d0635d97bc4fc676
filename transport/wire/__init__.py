"""The way of one message, or one vector, from a device to another."""
