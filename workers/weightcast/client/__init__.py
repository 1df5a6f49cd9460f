"""The control plane as Python: typed calls, retries and deadlines over one pool of connections."""

from weightcast.client.control_plane import ControlPlane
from weightcast.client.identity import Identity

__all__ = ["ControlPlane", "Identity"]
