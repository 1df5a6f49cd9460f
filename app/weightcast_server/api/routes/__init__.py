"""The routes, one module per tag."""
