"""Measured data: schemas, loading, cleaning, verification.

Read
    ``load_kernels(path=None, families=None) -> DataFrame``, ``load_models(path=None) -> DataFrame``: checked parquet;
    ``to_batches(frame) -> [(KernelBatch, positions), ...]``: the rows as kernels;
    ``conditions_of(rows, batch, device) -> Conditions``: how rows of one family and GPU were timed;
    ``observed_tiles(frame) -> DataFrame`` (kind, tile_m, tile_n, split_k, grid, kernels);
    ``devices_beside(path) -> {id: DeviceSpec}``, ``device_of(gpu, devices) -> DeviceSpec``: what rows were measured on.
Made canonical, row by row (``rows.read_rows(path, needed, what)`` reads parquet or CSV)
    ``runs.training_run(row) -> RunRow``: a step on many GPUs, its plan by the names of ``Plan``;
    ``runs.peak_run(row) -> dict``: a peak of memory of Megatron-LM, defaults and flags filled in;
    ``benchmarks.benchmark_step(row) -> StepRow``: a step of a whole model of timm, torchvision or others;
    ``cells.serving_cell(row, number) -> ServingCell``: a cell of measured serving;
    ``rows.unread_columns(rows, read, notes)``: columns that say something and that nothing reads.
Judge
    ``clean(frame, devices=None, rules=None) -> CleanResult(frame, report)``, ``RULES``,
    ``rules_named(names)``, ``explained(report)``, ``by_gpu(report)``;
    ``verify(name_or_path) -> VerifyReport``: ``.ok``, ``.problems``, ``.hashes``, ``.tables``, ``.to_dict()``.
Know
    ``list_datasets() -> [DatasetManifest]``, ``find_dataset(name)``, ``dataset_folder(manifest)``,
    ``show(name) -> str`` (the card as Markdown),
    ``describe(data, about=None, into=None) -> DatasetManifest`` (writes it and the card).
"""

from neusight.datasets.batches import to_batches
from neusight.datasets.clean import RULES, CleanResult, Rule, by_gpu, clean, explained, rules_named
from neusight.datasets.conditions import conditions_of
from neusight.datasets.load import device_of, devices_beside, load_kernels, load_models
from neusight.datasets.manifest import (
    About,
    DatasetManifest,
    FileRecord,
    dataset_folder,
    find_dataset,
    list_datasets,
)
from neusight.datasets.measured import observed_tiles, tile_coverage
from neusight.datasets.verify import VerifyReport, describe, show, verify

__all__ = [
    "RULES",
    "About",
    "CleanResult",
    "DatasetManifest",
    "FileRecord",
    "Rule",
    "VerifyReport",
    "by_gpu",
    "clean",
    "conditions_of",
    "dataset_folder",
    "describe",
    "device_of",
    "devices_beside",
    "explained",
    "find_dataset",
    "list_datasets",
    "load_kernels",
    "load_models",
    "observed_tiles",
    "rules_named",
    "show",
    "tile_coverage",
    "to_batches",
    "verify",
]
