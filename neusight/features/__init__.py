"""Named, dimensionless inputs of the tile models, and the time that physics alone expects."""

from neusight.features.contract import FeatureContract, load_contract
from neusight.features.formulas import FORMULAS, feature_matrix
from neusight.features.situation import Situation, situate

__all__ = ["FORMULAS", "FeatureContract", "Situation", "feature_matrix", "load_contract", "situate"]
