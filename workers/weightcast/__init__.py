"""Weightcast: moves model weights from RL trainers to rollout engines."""
