"""`mdl service`: a command of mdl as a service of systemd, which starts with the machine and is kept in bounds."""
