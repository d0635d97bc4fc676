"""Commands to study the scheduler and the simulated mesh: `mdl schedule`, `mdl scheduler`, `mdl sim`."""
