"""A local page over the Python API: ask, drag, look, decide, trust. It computes nothing that the API does not."""
