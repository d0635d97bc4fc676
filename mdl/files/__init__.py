"""Files: a crash leaves the old or the new one; reading has a limit."""
