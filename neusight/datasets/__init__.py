"""Measured data: schemas, loading, cleaning, verification, import.

Read
    ``load_kernels(path=None, families=None) -> DataFrame``, ``load_models(path=None) -> DataFrame``: checked parquet;
    ``to_batches(frame) -> [(KernelBatch, positions), ...]``: the rows as kernels;
    ``observed_tiles(frame) -> DataFrame`` (kind, tile_m, tile_n, split_k, grid, kernels), ``tile_coverage(frame)``.
Judge
    ``clean(frame, devices=None, rules=None) -> CleanResult(frame, report)``, ``summary(report)``, ``RULES``,
    ``rules_named(names)``;
    ``verify(name_or_path) -> VerifyReport`` with ``.ok``, ``.to_dict()`` and tables.
Know
    ``list_datasets() -> [Manifest]``, ``show(name) -> str`` (the card), ``write_manifest(name, root)``.
Bring
    ``import_csv(folder, out, gpu=None, ...) -> Manifest``.
"""

from neusight.datasets.clean import RULES, CleanResult, Rule, clean, rules_named, summary
from neusight.datasets.load import load_kernels, load_models, to_batches
from neusight.datasets.observe import observed_tiles, tile_coverage

__all__ = [
    "RULES",
    "CleanResult",
    "Rule",
    "clean",
    "load_kernels",
    "load_models",
    "observed_tiles",
    "rules_named",
    "summary",
    "tile_coverage",
    "to_batches",
]
