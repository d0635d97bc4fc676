"""The sockets, files and data of a cloud and its learners."""
