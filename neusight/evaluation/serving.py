"""Language models as they were served, predicted against measured, cell by cell. All errors in percent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neusight.datasets.cells import CELL_NEEDED, CELL_NOTES, CELL_READ, default_of, serving_cell, source_of
from neusight.datasets.published_cells import canonical_cell
from neusight.datasets.rows import read_rows, unread_columns
from neusight.errors import DataError, NeusightError, nearest, shown
from neusight.measured.score import Scored, Selection, compared
from neusight.paths import read_json
from neusight.serving import Deployment, ServingEstimate, serve
from neusight.serving.cells import ServingCase
from neusight.serving.deployment import share_prices
from neusight.serving.load import longest_of
from neusight.workloads.decoders.architecture import decoder_of
from neusight.workloads.decoders.decoder import Decoder
from neusight.workloads.decoders.known import known_decoder

if TYPE_CHECKING:
    from neusight.api import Predictor
    from neusight.devices import DeviceSpec

MODELS = "models.json"
WHAT = "serving cells"
FULL = 0.97
"""Share of the KV cache beyond which there is no room for another request."""
CELL_KEYS = ("source", "gpu", "n_gpus", "engine", "model", "mode", "concurrency", "isl", "osl")
"""Of a cell, in its rows."""
GROUPINGS = (("source",), ("mode",), ("gpu",), ("engine",), ("quantity",), ("source", "quantity"))

Prepare = Callable[[Deployment], Deployment]


def evaluate_serving(
    path: Path,
    predictor: Predictor,
    models: Path | None = None,
    selection: Selection | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
    prepare: Prepare | None = None,
) -> dict[str, Any]:
    """Predict every cell of measured serving and compare.

    Args:
        path: parquet of cells with gpu, model and what they measured; whatever else is empty or missing takes the
            defaults of ``neusight.datasets.cells``.
        predictor: whose predictions.
        models: file with configurations by the model's name; default ``models.json`` beside the cells where there is
            one. Other models are those that the program knows.
        selection: which rows.
        progress: called with (done, of) a cell.
        prepare: called with each deployment, gives the one that is loaded: with other constants of its engine, say.

    Returns:
        ``rows``, one a cell and quantity (prefill_ms, ttft_ms, tpot_ms, e2e_ms, tokens_per_s): cell, source, gpu,
        n_gpus, engine, model, mode, concurrency, isl, osl, quantity, predicted, low, high, measured, ape, bias, inside
        (the 90 % interval), fault, limited_by. ``means`` and ``means_all``: of rows without fault, and of all, by
        ``by``: count, mean, median, bias, inside. ``assumed``: defaults taken, each with its reason and the number of
        cells. ``skipped``: cells that are not compared, each with its reason. ``unread``: columns that nothing reads,
        with the number of cells.

    Raises:
        DataError: no such file, a foreign file, an unknown source, or no cell left.
    """
    records = _records(Path(path), selection or Selection())
    cases, skipped = _cases(records)
    cells = _Cells(Path(path), predictor, models)
    rows: list[dict[str, Any]] = []
    done, of = len(skipped), len(records)
    for group in _grouped(cases):
        for case, deployment in zip(group, cells.deployments(group, prepare), strict=True):
            estimate = _estimate(case, deployment)
            if isinstance(estimate, ServingEstimate):
                rows += figures_of(case, estimate)
            else:
                skipped.append({"cell": case.cell.name, "reason": str(estimate)})
            done += 1
            if progress:
                progress(done, of)
    if not rows:
        raise DataError(f"no cell of {path} can be compared: {skipped[0]['reason']}")
    return {
        "rows": rows,
        "means": means([row for row in rows if not row["fault"]]),
        "means_all": means(rows),
        "assumed": _assumed(cases),
        "skipped": skipped,
        "unread": unread_columns(records, CELL_READ, CELL_NOTES),
    }


def deployed_cells(
    path: Path, predictor: Predictor, models: Path | None = None, selection: Selection | None = None
) -> Iterator[list[tuple[ServingCase | None, Deployment | NeusightError]]]:
    """Every cell with what it deploys, or why it cannot, those of the same kernels together; those that are no cells
    come first, as None.

    Raises:
        DataError: no such file, or a foreign file.
    """
    cases, skipped = _cases(_records(Path(path), selection or Selection()))
    cells = _Cells(Path(path), predictor, models)
    yield [(None, DataError(row["reason"])) for row in skipped]
    for group in _grouped(cases):
        yield list(zip(group, cells.deployments(group), strict=True))


def _records(path: Path, selection: Selection) -> list[dict[str, Any]]:
    records = _cells_of(path)
    if selection.source:
        sources = sorted({source_of(str(record.get("cell", ""))) for record in records})
        if selection.source not in sources:
            hint = nearest(selection.source, sources)
            raise DataError(f"no cell of source '{selection.source}'{hint}: {', '.join(sources)}")
        records = [record for record in records if source_of(str(record.get("cell", ""))) == selection.source]
    return selection.of(records)


def _cells_of(path: Path) -> list[dict[str, Any]]:
    """Rows of a table in columns of cells; see ``canonical_cell``."""
    rows = read_rows(path, ("model",), WHAT)
    if any("accelerator" in row for row in rows):
        return [canonical_cell(row) for row in rows]
    return read_rows(path, CELL_NEEDED, WHAT)


def _cases(records: Sequence[Mapping[str, Any]]) -> tuple[list[ServingCase], list[dict[str, str]]]:
    cases, skipped = [], []
    for number, record in enumerate(records, start=1):
        try:
            cases.append(ServingCase.of(serving_cell(record, number)))
        except NeusightError as error:
            skipped.append({"cell": str(record.get("cell") or f"row {number}"), "reason": str(error)})
    return cases, skipped


def _grouped(cases: Sequence[ServingCase]) -> list[list[ServingCase]]:
    groups: dict[Any, list[ServingCase]] = {}
    for case in cases:
        groups.setdefault(case.kernels, []).append(case)
    return list(groups.values())


def _models_file(path: Path, models: Path | None) -> dict[str, Any]:
    file = models or path.parent / MODELS
    if models is None and not file.is_file():
        return {}
    content = read_json(file)
    if not isinstance(content, dict):
        raise DataError(f"{file} holds no configurations by name of models")
    return content


class _Cells:
    """Models as cells serve them, of the file of configurations, else known ones; devices of the data set of the
    cells, else of the catalogue.
    """

    def __init__(self, path: Path, predictor: Predictor, models: Path | None) -> None:
        from neusight.datasets import devices_beside

        self.predictor = predictor
        self.configs, self.own_devices = _models_file(path, models), devices_beside(path)

    def decoder(self, case: ServingCase) -> Decoder:
        """Raises:
        NeusightError: nobody knows the model, or what stands there is none.
        """
        model = case.cell.model
        config = self.configs.get(model)
        if config is not None and not isinstance(config, Mapping):
            raise DataError(f"no configuration of '{model}' but {shown(config)}: give that of a config.json")
        decoder = known_decoder(model) if config is None else decoder_of(config, model)
        return case.decoder(decoder)

    def deployments(
        self, group: Sequence[ServingCase], prepare: Prepare | None = None
    ) -> list[Deployment | NeusightError]:
        """Of cases about the same kernels, whose passes are priced once for all; or why there is none."""
        from neusight.datasets import device_of

        first = group[0]
        try:
            decoder, device = self.decoder(first), device_of(first.cell.gpu, self.own_devices)
        except NeusightError as error:
            return [error] * len(group)
        deployments = [self._deployment(case, decoder, device) for case in group]
        if prepare:
            deployments = [prepare(each) if isinstance(each, Deployment) else each for each in deployments]
        able = [each for each in deployments if isinstance(each, Deployment)]
        shared = iter(share_prices(able) if able else ())
        return [next(shared) if isinstance(each, Deployment) else each for each in deployments]

    def _deployment(self, case: ServingCase, decoder: Decoder, device: DeviceSpec) -> Deployment | NeusightError:
        try:
            deployment = self.predictor.deployment(decoder, device, longest_of(case.load), case.setup)
            _ = deployment.limits
        except NeusightError as error:
            return error
        return deployment


def _estimate(case: ServingCase, deployment: Deployment | NeusightError) -> ServingEstimate | NeusightError:
    try:
        return deployment if isinstance(deployment, NeusightError) else serve(deployment, case.load)
    except NeusightError as error:
        return error


def figures_of(case: ServingCase, estimate: ServingEstimate) -> list[dict[str, Any]]:
    """A row for each figure that a cell measured."""
    cell = case.cell
    names = {"cell": cell.name} | {name: getattr(cell, name) for name in CELL_KEYS}
    rows = []
    for quantity, measured in cell.measured.items():
        predicted, low, high = figure_of(case, estimate, quantity)
        row = names | {"quantity": quantity} | compared(predicted, (low, high), measured)
        rows.append(row | {"fault": cell.fault, "limited_by": limited_by(estimate, quantity)})
    return rows


def limited_by(estimate: ServingEstimate, quantity: str) -> str:
    """What a figure hangs on, in words: a queue or a cache that is full, and the largest part of its passes."""
    first = estimate.prefill if quantity in ("prefill_ms", "ttft_ms") else estimate.decode
    limiter = first or estimate.prefill or estimate.decode
    full = "a queue that grows" if estimate.diverges else "a full KV cache" if estimate.kv_use > FULL else ""
    part = f"{limiter.part} {100 * limiter.share:.0f} %, {limiter.resource}" if limiter else ""
    return "; ".join(words for words in (full, part) if words)


def figure_of(case: ServingCase, estimate: ServingEstimate, quantity: str) -> tuple[float, float, float]:
    """A quantity of an estimate as the cell measured it, and its interval, in the quantity's unit.

    A static batch is done when its slowest sequence is.
    """
    if quantity == "tokens_per_s":
        rate = estimate.steady_output_tokens_per_s if case.cell.steady else estimate.output_tokens_per_s
        return rate.mean, rate.low, rate.high
    times = {"prefill_ms": estimate.ttft_s, "ttft_ms": estimate.ttft_s, "e2e_ms": estimate.e2e_s}
    time_s = times.get(quantity, estimate.itl_s if case.cell.median else estimate.tpot_s)
    slowest = case.cell.mode == "static" and quantity != "tpot_ms"
    value_s = (time_s.p99 if slowest else time_s.p50 if quantity in case.cell.medians else None) or time_s.mean
    scale = 1e3 * value_s / time_s.mean
    return 1e3 * value_s, scale * time_s.low, scale * time_s.high


def means(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Errors of all rows, and by each of ``GROUPINGS``."""
    if not rows:
        return []
    scored = Scored.of(rows)
    return [
        {"by": " ".join(keys) or "all", **figures}
        for keys in ((), *GROUPINGS)
        for figures in scored.summary(*keys)
        if figures["count"]
    ]


def _assumed(cases: Sequence[ServingCase]) -> list[dict[str, Any]]:
    counts = Counter(what for case in cases for what in case.cell.assumed)
    defaults = {name: default_of(name) for name in counts}
    return [
        {"what": name, "value": defaults[name][0], "reason": defaults[name][1], "count": count}
        for name, count in sorted(counts.items())
    ]
