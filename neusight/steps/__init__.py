"""A step of any model on one device, or on those of a node: what is asked of it, its program, its estimate."""
