"""Named, dimensionless inputs of the tile models, and the time that physics alone expects."""

from neusight.executors.gpu.features.formulas import FORMULAS, FeatureContract, feature_matrix, load_contract
from neusight.executors.gpu.features.situation import Situation, situate

__all__ = ["FORMULAS", "FeatureContract", "Situation", "feature_matrix", "load_contract", "situate"]
