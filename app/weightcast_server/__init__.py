"""The Weightcast control plane: tracks model versions, workers, and who holds what."""
