"""The `weightcast` command."""
