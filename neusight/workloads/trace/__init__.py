"""Traces of executed steps: real modules on fake tensors, and the kernels that a GPU runs for each operator."""
