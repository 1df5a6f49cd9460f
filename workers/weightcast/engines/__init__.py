"""Checkpoint engines: how weight bytes leave a trainer and reach a rollout."""
