"""Accelerators whose products run in systolic arrays: TPU, Trainium, Gaudi, and arrays of one's own."""
