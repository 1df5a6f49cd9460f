"""The store: every fact that the server acknowledged, behind one protocol."""
