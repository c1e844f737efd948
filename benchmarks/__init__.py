"""Measurements that anyone can run: ``python -m benchmarks COMMAND [--quick]``."""
