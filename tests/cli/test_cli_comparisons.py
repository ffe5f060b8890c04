"""Several devices or optimisations at once: what has no answer is named beside what has one; long work shows that."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from neusight.cli.output import busy
from tests.cli_runs import as_json, invoke, run

GEMM = ("kernel", "gemm", "m=256", "n=256", "k=256", "dtype=bf16")


@pytest.mark.parametrize(
    ("arguments", "row", "refused"),
    [
        (("predict", "gpt2", "--gpu", "a100-sxm-80gb,v100-sxm2-16gb", "--dtype", "bf16"), "a100-sxm-80gb", "v100"),
        (("predict", "gpt2", "--gpu", "t4,l4", "--dtype", "bf16", "--mode", "training"), "l4", "t4"),
        ((*GEMM, "--gpu", "v100-sxm2-16gb,l4"), "l4", "v100"),
        ((*GEMM, "--gpu", "p4,t4,h100-sxm-80gb"), "h100-sxm-80gb", "t4"),
        (("sweep", "gpt2", "--gpu", "l4,t4", "--dtype", "bf16"), "l4", "t4 does not compute"),
    ],
)
def test_a_comparison_names_devices_without_an_answer(arguments: tuple[str, ...], row: str, refused: str) -> None:
    result = run(*arguments)
    assert any(line.startswith((row, "gpt2")) for line in result.stdout.splitlines())
    assert [line for line in result.stderr.splitlines() if refused in line and "does not compute in bfloat16" in line]


@pytest.mark.parametrize(
    "arguments",
    [
        ("predict", "gpt2", "--gpu", "t4,v100-sxm2-16gb", "--dtype", "bf16"),
        (*GEMM, "--gpu", "t4,p4"),
        ("sweep", "gpt2", "--gpu", "t4,p4", "--dtype", "bf16"),
        ("serving", "Qwen/Qwen3-8B", "--gpu", "t4,p4", "--isl", "64", "--osl", "8", "--batch", "1"),
    ],
)
def test_a_comparison_without_any_answer_is_an_error(arguments: tuple[str, ...]) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 1
    assert [line for line in result.stderr.splitlines() if line.startswith("error: ")]


def test_a_comparison_says_once_what_is_wrong_with_all() -> None:
    result = invoke("predict", "gpt2", "--gpu", "l4,t4,h100-sxm-80gb", "--dtype", "nonsense")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.count("nonsense") == 1


def test_predict_has_a_row_for_each_device_in_json() -> None:
    good, failed = as_json("predict", "gpt2", "--gpu", "l4,t4", "--dtype", "bf16")
    assert (good["gpu"], failed["gpu"]) == ("l4", "t4")
    assert failed["error"].startswith("t4 does not compute in bfloat16")


def test_predict_tells_which_device_is_how_probably_faster() -> None:
    devices = ("predict", "gpt2", "--batch", 8, "--gpu", "l4,t4,a100-sxm-80gb")
    answers = {answer["gpu"]: answer["faster_probability"] for answer in as_json(*devices)}
    assert answers["a100-sxm-80gb"]["t4"] > 0.95
    for one, chances in answers.items():
        assert all(chance + answers[other][one] == pytest.approx(1.0) for other, chance in chances.items())
    assert "a100-sxm-80gb faster than l4: above 99%" in " ".join(run(*devices).stdout.split())
    guess = run("predict", "gpt2", "--gpu", "a100-sxm-80gb,a100-pcie-80gb").stdout
    assert "no more than a guess" in " ".join(guess.split())


@pytest.mark.parametrize(
    ("compared", "batch"),
    [
        (("predict", "gpt2", "--gpu", "l4", "--seq-len", "16", "--batch", "8,64"), "batch {}"),
        (
            ("training", "gpt2-large", "--gpu", "h100-sxm-80gb", "--seq-len", "128", "-b", "8,64"),
            "global batch size {}",
        ),
    ],
)
def test_lists_of_any_option_tell_which_value_is_how_probably_faster(compared: tuple[str, ...], batch: str) -> None:
    few, many = map(batch.format, (8, 64))
    assert f"{many} faster than {few}: above 99%" in " ".join(run(*compared).stdout.split())
    first, _ = as_json(*compared)
    assert first["faster_probability"][many] < 0.01


def test_predict_counts_what_fits_with_the_probability_that_is_asked_for() -> None:
    step = ("predict", "gpt2-large", "--gpu", "l4", "--mode", "training", "--optimizer", "adam", "--batch", 2)
    step = (*step, "--set", "dram_usable=21.3GiB")
    chance = as_json(*step)["fit"]["fits_probability"]
    assert 0.5 < chance < 0.99
    result = run(*step, "--must-fit", 0.99, "--format", "json")
    assert '"fits": false' in result.stdout
    assert "less probable than --must-fit 0.99" in result.stderr
    assert result.stderr.count("probably fits") == 1


@pytest.mark.parametrize(
    ("names", "applies", "refused"),
    [
        ("compile,fused-optimizer", "compile", "fused-optimizer"),
        ("fused-optimizer,compile", "compile", "fused-optimizer"),
        ("compile,activation-offload", "compile", "activation-offload"),
    ],
)
def test_what_if_names_optimisations_that_do_not_apply(names: str, applies: str, refused: str) -> None:
    answer = as_json("what-if", "gpt2", "--gpu", "l4", "--apply", names)
    assert [rung["name"] for rung in answer["rungs"]] == [applies]
    assert list(answer["refused"]) == [refused]


def test_what_if_refuses_what_does_not_apply_at_all() -> None:
    result = invoke("what-if", "gpt2", "--gpu", "l4", "--apply", "fused-optimizer")
    assert (result.exit_code, result.stderr.startswith("error: the step has no optimizer")) == (1, True)


def test_predict_and_serving_take_prices_of_the_user(tmp_path: Path) -> None:
    table = tmp_path / "ours.toml"
    table.write_text(
        '[[lists]]\nprovider = "Ours"\nregion = "cellar"\ndate = 2026-11-01\npage = "offer"\n'
        '[lists.devices]\nl4 = { price = "0.2 USD/h" }\nl40s = { price = "0.4 USD/h" }\n',
        encoding="utf-8",
    )
    answers = as_json("predict", "gpt2", "--gpu", "l4,l40s", "--prices", table)
    assert [(e["usd_per_hour"], e["price_source"]) for e in answers] == [
        (0.2, "Ours cellar, 2026-11-01"), (0.4, "Ours cellar, 2026-11-01")
    ]  # fmt: skip
    served = run("serving", "Qwen/Qwen3-8B", "--gpu", "l40s", "--isl", 64, "--osl", 8, "--batch", 1, "--prices", table)
    assert "price: Ours cellar, 2026-11-01" in " ".join(served.stdout.split())
    trained = run("training", "gpt2", "--gpu", "l4", "--per-node", 1, "-b", 1, "--prices", table)
    assert "price: Ours cellar, 2026-11-01" in " ".join(trained.stdout.split())
    assert 'price = "0.2 $/h"' in run("devices", "show", "l4", "--prices", table).stdout


@pytest.mark.parametrize(
    ("gpu", "prefill", "priced"),
    [
        ("l40s", "l4", "price: AWS us-east-1"),
        ("a100-sxm-80gb", "mi300x", "price: RunPod secure cloud"),
        ("l40s", "rtx-3090", "no price of rtx-3090 is known"),
    ],
)
def test_serving_prices_both_pools_by_one_list(gpu: str, prefill: str, priced: str) -> None:
    pools = ("--gpu", gpu, "--prefill", f"gpu={prefill}", "--kv-link", "none")
    answer = run("serving", "Qwen/Qwen3-8B", *pools, "--isl", 64, "--osl", 8, "--batch", 1)
    assert priced in " ".join(answer.stdout.split())
    assert "AWS us-east-1" not in answer.stdout or "RunPod" not in answer.stdout


@pytest.mark.parametrize("gpu", ["rtx-3090", "tpu-v7", "jetson-thor-t5000"])
def test_devices_show_says_that_no_price_is_known(gpu: str) -> None:
    assert run("devices", "show", gpu).stdout.startswith(f"# no price of {gpu} is known: --set {gpu}.price=2.5USD/h")


def test_a_missing_price_is_named() -> None:
    asked = ("serving", "Qwen/Qwen3-8B", "--gpu", "l40s,rtx-3090", "--isl", 64, "--osl", 8, "--batch", 1)
    assert "note: no price of rtx-3090 is known" in run(*asked).stderr
    assert "no price of rtx-3090 is known" in run("sweep", "gpt2", "--gpu", "l4,rtx-3090", "--format", "csv").stderr
    alone = run("training", "gpt2", "--gpu", "rtx-3090", "--per-node", 1, "-b", 1).stdout
    assert "no price of rtx-3090 is known" in " ".join(alone.split())


class Terminal(io.StringIO):
    """A stderr that someone watches."""

    def isatty(self) -> bool:
        """Always."""
        return True


def test_busy_moves_a_line_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    with busy("looking") as advance:
        advance(3, 8, "4 x l4")
    assert "looking: 3 of 8, best so far 4 x l4" in terminal.getvalue()


def test_busy_says_nothing_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", pipe := io.StringIO())
    with busy("looking") as advance:
        advance(3, 8)
    assert pipe.getvalue() == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ("predict", "gpt2", "--gpu", "l4,t4"),
        ("sweep", "gpt2", "--gpu", "l4,t4", "--batch", "1,2"),
        ("training", "gpt2", "--gpu", "l4", "--per-node", "2", "-b", "2", "--tp", "1,2"),
        ("plan", "gpt2", "--gpu", "l4", "--per-node", "2", "-b", "2"),
        ("what-if", "gpt2", "--gpu", "l4", "--apply", "compile"),
        ("serving", "Qwen/Qwen3-8B", "--gpu", "l4", "--isl", "64", "--osl", "8", "--slo", "tpot=1s", "--tp", "1,2"),
    ],
)
def test_commands_show_that_work_goes_on(arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[str] = []

    def watched(text: str) -> object:
        texts.append(text)
        return busy(text)

    for module in ("predict", "sweep", "training", "what_if", "serving"):
        monkeypatch.setattr(f"neusight.cli.{module}.busy", watched)
    monkeypatch.setattr("neusight.cli.output.busy", watched)
    run(*arguments)
    assert texts
