"""Devices that are simulated, not measured: each in a sub-package of its own, whose tiles stand in for a stopwatch's.

``tensordash``: a training accelerator that skips multiplications by zero in one of its two operands. ``sparsity``: the
zeros of a network's operands, layer by layer. ``kinds`` tells such devices from others.
"""
