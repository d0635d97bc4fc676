"""The simulated mesh: virtual time, a network that loses messages, faults, and checks after each event."""
