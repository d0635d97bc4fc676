"""What is measured over links: hosts to run on, and what others take for the same."""
