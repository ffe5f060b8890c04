"""Options that several commands share: each is defined once, with its panel of the help; and the meaning of texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import typer

from neusight.cli.asked import Asked, CommandOptions, from_line
from neusight.cli.output import line, note
from neusight.cli.points import Point, QuestionOnDevice
from neusight.errors import shown
from neusight.paths import calibrations_dir, writable
from neusight.questions import parts
from neusight.questions.field import number, path, required, switch, text, whole
from neusight.quick_dataclasses import dataclass

if TYPE_CHECKING:
    from neusight.api import Predictor
    from neusight.devices import DeviceSpec
    from neusight.questions import Step

OUTPUT, WORKERS, CHOICE = parts.OUTPUT, "Workers", "Selection"

PICTURES = (".png", ".svg", ".pdf")
FROM_SCRIPT = from_line(
    "Megatron-LM's `torchrun … pretrain_gpt.py …`, or the script that runs it; a plan as .toml or .json, "
    "torchtitan's TOML or DeepSpeed's JSON. Options that are given count first.",
    "--plan",
)


def names(help: str, kind: str = "NAME", **declared: Any) -> Any:
    """An option whose value is a list of names, with commas between; none by default."""
    return text(help, CHOICE, (), listable=True, metavar=f"{kind}[,{kind}…]", **declared)


@dataclass(frozen=True, kw_only=True)
class Formatted(CommandOptions):
    """The form of the result."""

    form: str = text(
        "Form of the result on stdout.", OUTPUT, "human", choices=("human", "json", "csv"), option="--format",
        short="-f",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Explained(Formatted):
    """The form of the result, and what is doubtful about it."""

    explain: bool = switch("List the doubts of the time by size, each with what lessens it.", OUTPUT)

    def check(self) -> None:
        """Raises:
        FieldError: text among data.
        """
        super().check()
        if self.form != "human":
            self.refuse(("explain",), f"is text for people: leave out --format {self.form}")

    def show_below(self, points: Iterable[Point[Any]]) -> None:
        """Print the doubts of the points that have an answer."""
        from neusight.cli.explain import show_doubts

        shown = [point for point in points if point.estimate] if self.explain else []
        for point in shown:
            show_doubts(point.estimate, point.call.question, point.call.id if len(shown) > 1 else "")


@dataclass(frozen=True, kw_only=True)
class Benched(Explained):
    """The form of the result, what is doubtful about it, and how it is measured."""

    bench_command: bool = switch("Print the command that measures exactly this, with the engine's own tool.", OUTPUT)

    def check(self) -> None:
        """Raises:
        FieldError: a command among data.
        """
        super().check()
        if self.form != "human":
            self.refuse(("bench_command",), f"is text for a shell: leave out --format {self.form}")

    def show_below(self, points: Iterable[Point[Any]]) -> None:
        """Print the doubts of the points that have an answer, and the commands that measure them."""
        from neusight.check.bench import bench_command

        super().show_below(points)
        for point in points if self.bench_command else ():
            if point.estimate:
                line(f"\n{bench_command(point.call.question, point.estimate)}")


@dataclass(frozen=True, kw_only=True)
class WithTileModels(CommandOptions):
    """Regressors of tiles."""

    tile_models: Path | None = path(
        "Folder that `neusight train` wrote. Default: the tile models that ship.", OUTPUT, metavar="DIR"
    )


@dataclass(frozen=True, kw_only=True)
class Models(WithTileModels):
    """Tile models and calibrations that predict."""

    calibration: str = text(
        "File or folder that `neusight calibrate` wrote. Default: calibrations in your own folder, for their GPUs.",
        OUTPUT, metavar="FILE|none",
    )  # fmt: skip

    def load(self, gpus: Iterable[str | DeviceSpec] = ()) -> Predictor:
        """The predictor; warns if a calibration is given that belongs to none of ``gpus``."""
        from neusight.api import as_device

        predictor = load_predictor(self.tile_models, self.calibration)
        corrections = predictor.kernel_predictor.corrections
        if self.calibration not in ("", "none") and not any(as_device(gpu).id in corrections for gpu in gpus):
            note(f"warning: --calibration has no effect: it is of {', '.join(corrections) or 'no GPU'}")
        return predictor


@dataclass(frozen=True, kw_only=True)
class Learned(Models):
    """What predicts, and measurements of one's own that correct it."""

    measurements: Path | None = path(
        "Measurements of your own, of any model and GPU: rows as `neusight evaluate` reads them, or what `neusight "
        "check` reads. They correct the answer as far as they share its doubts.",
        OUTPUT, option="--given", metavar="FILE",
    )  # fmt: skip

    def load(self, gpus: Iterable[str | DeviceSpec] = ()) -> Predictor:
        """As ``Models.load``, with the measurements.

        Raises:
            DataError: a file that cannot be read, or that no prediction can learn from.
        """
        predictor = super().load(gpus)
        if self.measurements is None:
            return predictor
        from neusight.check.given import read_given

        return predictor.given(read_given(self.measurements))


@dataclass(frozen=True, kw_only=True)
class OnRay(CommandOptions):
    """A Ray cluster."""

    ray: str = text("Ray cluster whose cores share the work: auto, host:port, or local.", WORKERS, metavar="ADDRESS")


@dataclass(frozen=True, kw_only=True)
class Workers(OnRay):
    """Processes that share the work."""

    jobs: int | None = whole(
        "Processes that share the work. Default: one, or all cores of a cluster.", WORKERS, high=1024
    )

    @property
    def keywords(self) -> dict[str, Any]:
        """Keyword arguments of functions that share work among processes."""
        return {"jobs": self.jobs or (0 if self.ray else 1), "ray": self.ray}


@dataclass(frozen=True, kw_only=True)
class Named(CommandOptions):
    """A name of a catalogue."""

    name: str = required("A name.", "")


@dataclass(frozen=True, kw_only=True)
class Drawn(CommandOptions):
    """A picture of the result."""

    figure: Path | None = path("Draw the result into a file.", OUTPUT, metavar="FILE.png")

    def check(self) -> None:
        """Raises:
        BadParameter, DataError: a file that cannot be written, or that is no picture.
        """
        super().check()
        check_out(self.figure, "--figure", *PICTURES)


@dataclass(frozen=True, kw_only=True)
class Written(CommandOptions):
    """A file, or with ``FOLDER`` a folder, that is written."""

    FOLDER: ClassVar[bool] = False

    out: Path | None = path("Output file.", OUTPUT)

    def check(self) -> None:
        """Raises:
        DataError: it cannot be written.
        """
        super().check()
        if self.out is not None:
            writable(self.out, folder=self.FOLDER)


@dataclass(frozen=True, kw_only=True)
class Listed(CommandOptions):
    """A list in place of an answer."""

    listing: bool = switch("Show what there is.", OUTPUT, option="--list")


@dataclass(frozen=True, kw_only=True)
class Counted(CommandOptions):
    """Number of results."""

    count: int = whole("Results to show.", OUTPUT, 5, high=1000, short="-n")


@dataclass(frozen=True, kw_only=True)
class Limited(CommandOptions):
    """Limit on rows."""

    limit: int | None = whole("Most rows, drawn at random. Default: all.", CHOICE)


@dataclass(frozen=True, kw_only=True)
class OfSplit(CommandOptions):
    """A part of the rows."""

    split: str = text("Rows of this split: train or test. Default: all.", CHOICE, metavar="NAME")


@dataclass(frozen=True, kw_only=True)
class OfKernels(CommandOptions):
    """Kinds of kernels."""

    families: tuple[str, ...] = names("Kernel families. Default: all.")
    dtypes: tuple[str, ...] = names(
        "Precisions: bfloat16, float32, float16, tf32, float8. Default: all that the device has."
    )


@dataclass(frozen=True, kw_only=True)
class OfModels(CommandOptions):
    """Names of models."""

    models: tuple[str, ...] = names("Tile models: gemm, conv2d, matrix, … Default: all that have rows.")


@dataclass(frozen=True, kw_only=True)
class HeldOut(CommandOptions):
    """Devices whose measurements are not read."""

    hold_out: tuple[str, ...] = names("Devices to leave out.", "ID")


@dataclass(frozen=True, kw_only=True)
class OfData(CommandOptions):
    """Measurements."""

    data: Path | None = path(
        "Measured kernels: a table, a data set, or a folder of them. Default: $NEUSIGHT_DATA.", CHOICE, metavar="DATA"
    )


@dataclass(frozen=True, kw_only=True)
class OnHost(CommandOptions):
    """The device of this machine."""

    device: str = text(
        "GPUs of this machine (cuda, for ROCm too), or its processor.", CHOICE, "cuda", choices=("cuda", "cpu")
    )


@dataclass(frozen=True, kw_only=True)
class WithTime(CommandOptions):
    """Limit on time."""

    minutes: float = number("Time for measuring, in minutes.", CHOICE, 20.0, low=0.01, high=1e5)


def precisions(names: Iterable[str]) -> list[str]:
    """``bf16`` and ``half`` as ``[bfloat16, float16]``.

    Raises:
        CoverageError: no dtype has such a name.
    """
    from neusight.kernels.precision import dtype_named

    return list(map(dtype_named, names))


def named_gpu(name: str, brought: Mapping[str, DeviceSpec] | None = None) -> str:
    """Id or path of the device that a name stands for; a note on stderr reports the meaning of a short name.

    Args:
        name: as the user gave it.
        brought: devices of a data set, whose ids come before the catalogue's names.

    Raises:
        DeviceError: no device has this name, or several have.
    """
    from neusight.devices.load import find_device

    if brought and name in brought:
        return name
    device = find_device(name)
    if device.request:
        note(f"note: {device.assumption}")
    return device.name


def on_devices(asked: Asked[Any]) -> list[QuestionOnDevice]:
    """Questions with their devices, each with its changes, and prices of one list if it has all.

    Raises:
        BadParameter: no device. DeviceError, UnitError: as ``load_devices``.
    """
    from neusight.devices.load import changes_of, load_devices

    questions = asked.questions
    first, names = questions[0], list(dict.fromkeys(question.gpu for question in questions))
    if names == [""]:
        if not first.cluster:
            raise typer.BadParameter("names no GPU: give ids of `neusight devices list`", param_hint="--gpu")
        return [QuestionOnDevice(question=question) for question in questions]
    ids = dict(zip(names, map(named_gpu, names), strict=True))
    load_predictor = dict(zip(names, load_devices([*ids.values()], first.overrides, first.prices), strict=True))
    changes = {name: tuple(changes_of(load_predictor[name].id, first.overrides)) for name in names}
    return [
        QuestionOnDevice(
            question=question.changed(gpu=ids[question.gpu], overrides=changes[question.gpu]),
            device=load_predictor[question.gpu],
        )
        for question in questions
    ]


def asker(predictor: Predictor) -> Callable[[QuestionOnDevice], Any]:
    """The function that answers a question on its device."""
    return lambda call: predictor.ask(call.question, call.device)


def listed_devices(prices: Path | None = None) -> list[DeviceSpec]:
    """All GPUs of the first price list."""
    from neusight.devices import listed_gpus

    return listed_gpus(prices or "")


def note_prices(devices: Sequence[DeviceSpec]) -> None:
    """Report devices without a price, and prices of several lists, on stderr."""
    from neusight.devices import price_notes

    for remark in price_notes(devices):
        note(f"note: {remark}")


def check_steps(steps: Sequence[Step]) -> None:
    """Refuse mistakes that no comparison of steps should hide in one of its rows.

    Raises:
        BadParameter: an optimizer, and nothing is trained. CoverageError: an unknown dtype.
    """
    from neusight.kernels.precision import Precision

    if steps[0].optimizer != "none" and all(step.mode != "training" for step in steps):
        raise typer.BadParameter(
            "inference has no optimizer: add --mode training, or leave it out", param_hint="--optimizer"
        )
    for dtype in dict.fromkeys(step.dtype for step in steps if step.dtype):
        Precision.named(dtype)


def load_predictor(tile_models: Path | None, calibration: str) -> Predictor:
    """Load tile models, and calibrations: of a file or folder, none with ``none``, with '' those of the user."""
    from neusight.api import Predictor

    chosen = None if calibration == "none" else Path(calibration or calibrations_dir())
    return Predictor.load(tile_models, chosen)


def note_corrections(predictor: Predictor, gpus: Iterable[str]) -> None:
    """Report on stderr each GPU (by id) whose estimates are corrected by measurements of that GPU."""

    corrections = predictor.kernel_predictor.corrections
    for gpu in dict.fromkeys(gpus):
        if (correction := corrections.get(gpu)) is not None:
            note(f"note: corrected by {correction.described()}; --calibration none leaves that out")


def check_out(path: Path | None, option: str, *suffixes: str) -> None:
    """Check before work begins that its result can be written.

    Raises:
        BadParameter: another ending than one of ``suffixes``, or a folder that is not there. DataError: no file can be
            written there.
    """
    if path is None:
        return
    if suffixes and path.suffix.lower() not in suffixes:
        named = ", ".join(suffixes)
        raise typer.BadParameter(f"'{shown(path)}' does not end in {named}: name it so", param_hint=option)
    writable(path)
    if not path.parent.is_dir():
        raise typer.BadParameter(f"there is no folder '{shown(path.parent)}': make it first", param_hint=option)
