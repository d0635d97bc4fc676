"""What owners of a mesh do about its members."""
