"""Tile models: how close to its bound each tile comes, learned from measurements. One protocol, backends by name."""

from neusight.executors.gpu.tile_models.artifact import Artifact, load_artifact, load_artifacts, save_artifact
from neusight.executors.gpu.tile_models.protocol import BACKENDS, TileModel, TrainingSet, new_model

__all__ = [
    "BACKENDS",
    "Artifact",
    "TileModel",
    "TrainingSet",
    "load_artifact",
    "load_artifacts",
    "new_model",
    "save_artifact",
]
