"""Options that commands share, progress bars, and the page beside a command."""
