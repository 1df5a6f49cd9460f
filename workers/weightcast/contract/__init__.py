"""The REST contract between workers and the control plane: wire models, enumerations and problem codes.

The only part of this package that the server imports. It needs neither torch nor nixl nor fastapi.
"""
