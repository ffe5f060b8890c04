"""``neusight train``."""


def train() -> None:
    """Train tile models."""
