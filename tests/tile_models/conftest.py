"""Fitted toys, and artifacts made of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tile_models_toys import SMALL, manifest, planted

from neusight.executors.gpu.tile_models import Artifact, new_model, save_artifact
from neusight.learn.card import render_card


@pytest.fixture(scope="session")
def fitted() -> Callable[[str], Any]:
    """A model of a backend, fitted once on ``planted()``."""
    made: dict[str, Any] = {}

    def fit(backend: str) -> Any:
        if backend not in made:
            made[backend] = new_model(backend, **SMALL[backend]).fit(planted())
        return made[backend]

    return fit


@pytest.fixture
def saved(tmp_path: Path, fitted: Callable[[str], Any]) -> Callable[..., Path]:
    """Save a fitted model as ``tmp_path/toy``, with changes to its manifest."""

    def save(backend: str = "linear", **changes: Any) -> Path:
        described = manifest(backend, **changes)
        return save_artifact(Artifact(described, fitted(backend)), tmp_path / "toy", render_card(described))

    return save
