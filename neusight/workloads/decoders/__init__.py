"""Decoders as serving engines run them: from a configuration to the kernels of a step, built and not traced."""
