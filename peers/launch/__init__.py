"""`mdl up`: the processes of one machine, their run directory, baselines and checks."""
