"""The paper's own scheduling problem, its environment and its optimum."""
