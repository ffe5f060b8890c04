"""GPUs: kernels are cut into tiles, bounded by physics, and corrected by what was learned from measurements."""
