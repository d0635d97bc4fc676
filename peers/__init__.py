"""peers: the roles, the command line, and the API that `import mdl` gives to programs."""
