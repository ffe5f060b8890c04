"""Collectives: what devices do together over their links, and the network between their nodes."""
