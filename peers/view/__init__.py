"""Views for people: the live view, watched meshes, inference."""
