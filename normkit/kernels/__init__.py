"""Compiled loops over rows in memory, which adapters share: buffers in, buffers out.

Nothing here imports a framework, and Numba only where a kernel is called for.
"""
