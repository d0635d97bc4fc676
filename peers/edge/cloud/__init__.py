"""A cloud and its learners where they meet sockets, files and data."""
