"""``neusight design``: the best hypothetical device for workloads, with its proof."""

from __future__ import annotations

from collections.abc import Mapping
from string import ascii_uppercase
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from neusight.cli import options as opt
from neusight.cli.asked import CommandOptions, described, parts_of
from neusight.cli.output import Output, busy, figures, line, note
from neusight.questions import Training
from neusight.questions.field import number, pairs_of, required, switch, text, texts, whole
from neusight.questions.parts import OnCluster
from neusight.questions.question import like
from neusight.quick_dataclasses import dataclass

if TYPE_CHECKING:
    from neusight.design.report import BestDesign
    from neusight.design.space import DesignSpace
    from neusight.design.workloads import DesignTraining

SEARCH = "Search"


@dataclass(frozen=True, kw_only=True)
class DesignWorkloads(CommandOptions):
    """Training steps that designs are judged by."""

    HELP: ClassVar[Mapping[str, str]] = {
        "nodes": "Nodes.",
        "per_node": "Devices of a node. Default: 8, or 1 without links.",
    }

    model: tuple[str, ...] = like(
        Training, "model", default=(), help="Models to train. Default: workloads of the space.", argument=False,
        short="-m", metavar="NAME[,NAME…]",
    )  # fmt: skip
    global_batch_size: int = like(Training, "global_batch_size", default=1024, listable=False)
    seq_len: int | None = like(Training, "seq_len", listable=False)
    per_node: int | None = like(OnCluster, "per_node", high=2**20)
    nodes: int = like(OnCluster, "nodes", default=1, listable=False)
    engine: str = like(Training, "engine", default="maxtext", help="Software that trains.", listable=False)

    def of(self, space: DesignSpace) -> tuple[DesignTraining, ...]:
        """Workloads that are named, or those of the space.

        Raises:
            BadParameter: there are neither.
        """
        from neusight.design.workloads import DesignTraining
        from neusight.devices.cluster import default_per_node

        if not self.model and not space.workloads:
            raise typer.BadParameter("the space has no workloads: name models to train", param_hint="--model")
        words = {name: getattr(self, name) for name in ("global_batch_size", "seq_len", "nodes", "engine")}
        words["per_node"] = self.per_node or default_per_node(space.base_device)
        return tuple(DesignTraining(model=name, **words) for name in self.model) or space.workloads


@dataclass(frozen=True, kw_only=True)
class DesignSearchOptions(CommandOptions):
    """The design space, and limits of its search."""

    space: str = required("One that ships (gpu, phaze, systolic, tensordash), or a TOML file.", "")
    gap: float = number("Share by which a design may be faster that is not found.", SEARCH, 0.0, low=0.0, high=1.0)
    minutes: float = like(
        opt.WithTime, "minutes", default=10.0, help="End after so many minutes, with the gap then.", panel=SEARCH
    )
    front: int = whole(
        "Limits of area and of power below which the best is looked for too, for designs that no other beats.",
        SEARCH, 0, low=0, high=100,
    )  # fmt: skip
    every: bool = switch("Simulate every design, whatever its bound is: for small spaces.", SEARCH)
    axis: tuple[str, ...] = texts(
        "Take these values of an axis alone. May be repeated.", SEARCH, metavar="NAME=V[,V…]", pairs=True
    )
    listing: bool = like(opt.Listed, "listing", help="Only count the space's designs, with their areas.")
    baseline: str = text(
        "Device to compare with. Default: the space's baseline.", opt.OUTPUT, metavar="NAME", former=("against",)
    )


def design(
    workloads: DesignWorkloads,
    search: DesignSearchOptions,
    workers: opt.Workers,
    drawn: Annotated[opt.Drawn, described(figure="Draw the gain of designs against their areas.")],
    output: opt.Formatted,
) -> None:
    """Find the best device of a space that nobody has built, for training steps that share it in the best way.

    Every design has a bound; the search ends when none is below the best that was simulated.

    Examples:

    - `neusight design phaze --list`

    - `neusight design phaze --jobs 2 --baseline tpu-v4`

    - `neusight design phaze --model gpt2-xl -b 4096 --nodes 128 --front 5 --figure designs.png`
    """
    from neusight.design.front import chart
    from neusight.design.report import answers
    from neusight.design.space import load_space

    figure = drawn.figure
    chosen = load_space(search.space)
    if search.axis:
        chosen = chosen.narrowed({name: _values(values) for name, values in pairs_of(search.axis).items()})
    if search.listing:
        designs = chosen.admitted
        areas, powers = designs.area_mm2, designs.power_w
        row = {
            "designs": len(designs), "least_area_mm2": float(areas.min()), "area_mm2": float(areas.max()),
            "least_power_w": float(powers.min()), "power_w": float(powers.max()),
        }  # fmt: skip
        words = f"{len(designs):,} designs of {areas.min():.1f} to {areas.max():.1f} mm2, "
        Output(output.form).data(row, [row], lambda: line(words + f"{powers.min():.0f} to {powers.max():.0f} W"))
        return
    with busy("searching") as advance:

        def closer(least: float) -> None:
            advance(0, 0, f"within {1.0 / least - 1.0:.1%} of the bound")

        best = answers(
            chosen, workloads.of(chosen), against=search.baseline, gap=search.gap, limit_s=60.0 * search.minutes,
            front=search.front, every=search.every, progress=closer, **workers.keywords,
        )  # fmt: skip
    rows = [answer.to_dict() for answer in best]
    Output(output.form).data(rows, rows, lambda: _show(best))
    if figure is not None:
        area_mm2 = None if search.baseline else float(chosen.of_baseline["area_mm2"][0])
        chart(best, search.baseline or "the baseline", area_mm2).save(figure)
        note(f"wrote {figure}")
    if any(answer.optimum.least_share < 1.0 for answer in best):
        note("note: where the column gap is not 0 %, a design may be faster by that much: give --minutes more")


def _values(text: str) -> list[float]:
    """Values of an axis.

    Raises:
        BadParameter: no numbers.
    """
    try:
        return [float(part) for part in parts_of(DesignSearchOptions.fields()["axis"], text)]
    except ValueError:
        message = f"'{text}' is not a list of numbers: write it like width=64,128"
        raise typer.BadParameter(message, param_hint="--axis") from None


def _show(found: list[BestDesign]) -> None:
    """Show the designs of one workload; of several by letters, since many have the same design."""
    names = list(dict.fromkeys(answer.workload.name for answer in found))
    designs = list(dict.fromkeys(answer.design_words for answer in found))
    letters = {words: _letter(number) for number, words in enumerate(designs)}
    if len(names) == 1:
        figures(f"~design = words | {_COLUMNS}", map(_figures, found), names[0])
        return
    rows = (_figures(answer) | {"letter": letters[answer.design_words]} for answer in found)
    figures(f"workload | design = letter | {_COLUMNS}", rows)
    figures("design = letter | figures = words", ({"letter": letters[words], "words": words} for words in designs), "")


def _letter(number: int) -> str:
    """The letter of a number: A to Z, then A1 and so on."""
    turn, place = divmod(number, len(ascii_uppercase))
    return ascii_uppercase[place] + (str(turn) if turn else "")


_COLUMNS = (
    ">area = area_mm2:.0f | >W = power_w:.0f | >step = {step:decimal4} s | >gain = {ratio:.2f}x | "
    " = {low:.2f} - {high:.2f} | >gap = gap:.1%"
)


def _figures(answer: BestDesign) -> dict[str, Any]:
    """Figures of a table's row."""
    gain, optimum = answer.gain, answer.optimum
    return {
        "workload": answer.workload.name, "words": answer.design_words, "area_mm2": answer.area_mm2,
        "power_w": answer.power_w, "step": optimum.steps_s[0], "gap": 1.0 / optimum.least_share - 1.0,
        "ratio": gain.ratio, "low": gain.low, "high": gain.high,
    }  # fmt: skip
