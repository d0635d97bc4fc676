"""Training on one device: models, optimizers, parameters as one flat vector, evaluation."""
