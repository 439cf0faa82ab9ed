"""Benchmarks are modules: `python -m benchmarks.cli`, each beside its floor in the same run."""
