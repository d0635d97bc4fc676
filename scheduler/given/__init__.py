"""Policies that users bring: a file that was trained, the paper's DQN, a function of their own."""
