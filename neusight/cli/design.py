"""``neusight design``: the best of the devices that nobody has built, for workloads, with its proof."""

from __future__ import annotations

from dataclasses import dataclass
from string import ascii_uppercase
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neusight.cli import options as opt
from neusight.cli.options import OUTPUT, PLAN, STEP, Spec
from neusight.cli.output import Output, busy, line, note, table
from neusight.units import decimal

if TYPE_CHECKING:
    from neusight.design.report import BestDesign
    from neusight.design.space import DesignSpace
    from neusight.design.workloads import DesignTraining

SEARCH = "Search"


@dataclass(frozen=True, kw_only=True)
class DesignWorkloads:
    """DesignTraining steps that designs are judged by."""

    model: Annotated[
        str, Spec("--model -m", STEP, "Models to train. Default: workloads of the space.", "NAME[,NAME…]").text()
    ] = ""
    global_batch_size: Annotated[int, Spec("--global-batch-size -b", STEP, "Sequences of a step.").number()] = 1024
    seq_len: opt.SeqLen = None
    per_node: Annotated[
        int | None,
        Spec("--per-node", PLAN, "Devices of a node. Default: 8, or 1 where they have no links.").number(most=2**20),
    ] = None
    nodes: Annotated[int, Spec("--nodes", PLAN, "Nodes.").number(most=2**20)] = 1
    engine: Annotated[str, Spec("--engine", STEP, "Of the training steps.", "NAME").text()] = "maxtext"

    def of(self, space: DesignSpace) -> tuple[DesignTraining, ...]:
        """Those that are named, or those of the space.

        Raises:
            BadParameter: neither.
        """
        from neusight.design.workloads import DesignTraining
        from neusight.devices.cluster import default_per_node

        if not self.model and not space.workloads:
            raise typer.BadParameter("the space has no workloads: name models to train", param_hint="--model")
        per_node = self.per_node or default_per_node(space.base_device)
        sizes = {"global_batch_size": self.global_batch_size, "seq_len": self.seq_len, "per_node": per_node}
        common: dict[str, Any] = {**sizes, "nodes": self.nodes, "engine": self.engine}
        return (
            tuple(DesignTraining(model=name, **common) for name in opt.listed(self.model, "--model"))
            if self.model
            else (space.workloads)
        )


@dataclass(frozen=True, kw_only=True)
class DesignSearchOptions:
    """How far."""

    gap: Annotated[
        float, Spec("--gap", SEARCH, "Share by which a design may be faster that is not found.").number(0, 1)
    ] = 0.0
    minutes: Annotated[float, Spec("--minutes", SEARCH, "End after so long, with the gap then.").number(0.01, 1e5)] = (
        10.0
    )
    front: Annotated[
        int,
        Spec("--front", SEARCH, "Look below so many limits of area and of power too, for what no other beats.").number(
            least=0, most=100
        ),
    ] = 0
    every: Annotated[
        bool, Spec("--every", SEARCH, "Simulate every design, whatever its bound is: for small spaces.").text()
    ] = False


def design(
    space: Annotated[
        str,
        typer.Argument(metavar="SPACE", help="One that ships (gpu, phaze, systolic, tensordash), or a TOML file."),
    ],
    workloads: DesignWorkloads,
    search: DesignSearchOptions,
    workers: opt.Workers,
    against: Annotated[
        str, Spec("--against", OUTPUT, "Device to compare with. Default: the space's baseline.", "NAME").text()
    ] = "",
    axis: Annotated[
        list[str] | None,
        Spec("--axis", SEARCH, "Take these values of an axis alone; may be repeated.", "NAME=V[,V…]").text(),
    ] = None,
    figure: opt.Picture = None,
    listing: Annotated[
        bool, Spec("--list", OUTPUT, "Only count the space's designs, with their areas.").text()
    ] = False,
    form: opt.Format = "human",
) -> None:
    """Find the best device of a space that nobody has built, for training steps that share it in the best way.

    Every design has a bound; the search ends when none is below the best that was simulated.

    Examples:

    - `neusight design phaze --list`

    - `neusight design phaze --jobs 2 --against tpu-v4`

    - `neusight design phaze --model gpt2-xl -b 4096 --nodes 128 --front 5 --figure designs.png`
    """
    from neusight.design.front import chart
    from neusight.design.report import answers
    from neusight.design.space import load_space

    opt.check_out(figure, "--figure", *opt.PICTURES)
    chosen = load_space(space)
    if axis:
        chosen = chosen.narrowed({name: _values(text) for name, text in opt.pairs(axis, "--axis").items()})
    if listing:
        designs = chosen.admitted
        areas, powers = designs.area_mm2, designs.power_w
        row = {
            "designs": len(designs), "least_area_mm2": float(areas.min()), "area_mm2": float(areas.max()),
            "least_power_w": float(powers.min()), "power_w": float(powers.max()),
        }  # fmt: skip
        words = f"{len(designs):,} designs of {areas.min():.1f} to {areas.max():.1f} mm2, "
        Output(form).data(row, [row], lambda: line(words + f"{powers.min():.0f} to {powers.max():.0f} W"))
        return
    with busy("searching") as advance:

        def closer(least: float) -> None:
            advance(0, 0, f"within {1.0 / least - 1.0:.1%} of the bound")

        found = answers(
            chosen, workloads.of(chosen), against=against, gap=search.gap, limit_s=60.0 * search.minutes,
            front=search.front, every=search.every, progress=closer, **workers.keywords,
        )  # fmt: skip
    rows = [answer.to_dict() for answer in found]
    Output(form).data(rows, rows, lambda: _show(found))
    if figure is not None:
        area_mm2 = None if against else float(chosen.of_baseline["area_mm2"][0])
        chart(found, against or "the baseline", area_mm2).save(figure)
        note(f"wrote {figure}")
    if any(answer.optimum.least_share < 1.0 for answer in found):
        note("note: where the column gap is not 0 %, a design may be faster by that much: give --minutes more")


def _values(text: str) -> list[float]:
    """Of an axis.

    Raises:
        BadParameter: no numbers.
    """
    try:
        return [float(part) for part in opt.listed(text, "--axis")]
    except ValueError:
        message = f"'{text}' is not a list of numbers: write it like width=64,128"
        raise typer.BadParameter(message, param_hint="--axis") from None


def _show(found: list[BestDesign]) -> None:
    """Of one workload its designs; of several the designs by letters, since many have the same."""
    names = list(dict.fromkeys(answer.workload.name for answer in found))
    columns = [">area", ">W", ">step", ">gain", "", ">gap"]
    if len(names) == 1:
        line(names[0])
        table(["~design", *columns], ([answer.design_words, *_cells(answer)] for answer in found))
        return
    designs = list(dict.fromkeys(answer.design_words for answer in found))
    letters = {words: _letter(number) for number, words in enumerate(designs)}
    rows = ([answer.workload.name, letters[answer.design_words], *_cells(answer)] for answer in found)
    table(["workload", "design", *columns], rows)
    line()
    table(["design", "figures"], ([letters[words], words] for words in designs))


def _letter(number: int) -> str:
    """A to Z, then A1 and so on."""
    turn, place = divmod(number, len(ascii_uppercase))
    return ascii_uppercase[place] + (str(turn) if turn else "")


def _cells(answer: BestDesign) -> list[str]:
    return [
        f"{answer.area_mm2:.0f}",
        f"{answer.power_w:.0f}",
        f"{decimal(answer.optimum.steps_s[0], 4)} s",
        f"{answer.gain.ratio:.2f}x",
        f"{answer.gain.low:.2f} - {answer.gain.high:.2f}",
        f"{1.0 / answer.optimum.least_share - 1.0:.1%}",
    ]
