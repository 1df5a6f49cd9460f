"""Benchmarks that ship with the library: what `weightcast bench` measures on the machine it runs on."""
