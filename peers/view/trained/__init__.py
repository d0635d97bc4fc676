"""A trained model in use: on recordings without labels, and in other programs."""
