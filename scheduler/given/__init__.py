"""Policies that users bring: a trained file, the paper's DQN, a function of their own."""
