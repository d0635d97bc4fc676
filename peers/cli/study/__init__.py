"""Commands for who studies the scheduler and the simulated mesh: `mdl schedule`, `mdl scheduler`, `mdl sim`."""
