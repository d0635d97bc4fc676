"""Power of a device at work, in watts, on top of its owner's use."""

from __future__ import annotations

# Given: power of a device while it sends, receives and merges (on top of its owner's use).
SEND_W, RECEIVE_W, MERGE_W = 1.0, 0.8, 1.5
# Assumed: the power of a phone's processor at work, on top of the rest. A laptop's takes several times as much.
TRAINING_W = 1.5
