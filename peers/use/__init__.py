"""Uses of a trained model: scores, predictions, and files that other programs read (`mdl eval`, `mdl export`)."""
