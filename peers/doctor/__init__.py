"""`mdl doctor`: finds what keeps a mesh from working on this machine and network; checks in the order of dependence."""
