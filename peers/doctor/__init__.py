"""`mdl doctor`: what keeps a mesh from working on this machine and this network, in the order in which things break."""
