"""Commands of a mesh's owners about its members."""
