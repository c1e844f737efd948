"""Faults, produced with real processes, and what must be left when they are over.

``REDISQ_FAULTS=full`` chooses the full size, ``REDISQ_FAULT_SEED`` repeats a run with its seed.
"""
