"""Measurements, each a program of its own: `python -m benchmarks.NAME [--quick]`. Not part of the wheel."""
