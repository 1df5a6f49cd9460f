"""The demonstration: a transformer in training moves from trainer to rollout processes, version after version."""
