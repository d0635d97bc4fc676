"""Files: written so that a crash leaves the old or the new one, read with a limit."""
