"""The messages of devices, the vocabulary of machines, and the contents of a round's exchange."""
