"""peers: the roles, the command line, and what `import mdl` gives to programs."""
