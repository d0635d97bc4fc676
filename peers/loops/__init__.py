"""Training loops of a user's own that take part in a mesh, by `mdl.join`."""
