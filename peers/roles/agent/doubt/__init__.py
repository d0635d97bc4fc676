"""What an agent does about deltas that a device has refused."""
