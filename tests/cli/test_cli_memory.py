"""``neusight memory``: data in every format, pages at 80 columns, mistakes."""

import pytest
from cli_runs import as_csv, as_json, error, run

from neusight.plans.memory import PARTS

QUESTION = ("memory", "Qwen/Qwen3-8B", "--gpu", "h100-sxm-80gb", "--seq-len", 4096)
SHARED = ("--tp", 4, "--pp", 3, "--dp", 2, "--shard", "zero1", "--sequence-parallel")


def test_json_holds_each_kind_of_rank_with_its_parts() -> None:
    answer = as_json(*QUESTION, *SHARED)
    assert [row["rank"] for row in answer["ranks"]] == ["first", "middle", "last"]
    for row, line in zip(answer["ranks"], as_csv(*QUESTION, *SHARED), strict=True):
        assert sum(row[part] for part in PARTS) == pytest.approx(row["peak_bytes"]) == float(line["peak_bytes"])
        assert row["peak_bytes"] < row["needed_bytes"] == float(line["needed_bytes"])
    assert answer["fits"]
    assert answer["plan"]["pp"] == 3
    assert answer["largest_micro_batch"] >= 1
    assert answer["longest_sequence"] >= 4096


def test_what_is_found_to_fit_does_and_more_does_not() -> None:
    most = as_json(*QUESTION, *SHARED)["largest_micro_batch"]
    fits = [as_json(*QUESTION, *SHARED, "--micro-batch-size", size)["fits"] for size in (most, most + 1)]
    assert fits == [True, False]


def test_a_page_for_people() -> None:
    page = run(*QUESTION, *SHARED, "--vp", 2, "--recompute", "full").stdout
    assert all(len(line) <= 80 for line in page.splitlines())
    assert "does not fit: the only rank needs" in " ".join(run(*QUESTION).stdout.split())
    assert "fits: the last rank needs" in page


def test_float8_halves_what_products_keep_and_its_optimizer_stays() -> None:
    wide, narrow = (as_json(*QUESTION, *SHARED, "--dtype", name)["ranks"][0] for name in ("bf16", "fp8"))
    assert narrow["activations"] < wide["activations"]
    assert narrow["optimizer"] == wide["optimizer"]


def test_encoders_and_depths_of_prediction_take_more() -> None:
    """A longer source keeps more; a pipeline would have to hand the encoder's results on, and is refused."""
    t5 = ("memory", "t5-small", "--gpu", "h100-sxm-80gb", "--seq-len", 128)
    short, usual, longer = (
        as_json(*t5, *source)["ranks"][0]["activations"]
        for source in ((), ("--source-len", 128), ("--source-len", 512))
    )
    assert short == usual < longer
    assert "what an encoder gives to all stages behind it is not built" in error(*t5, "--pp", 2)
    assert "multi-token prediction of an encoder's decoder is not built" in error(*t5, "--mtp-layers", 1)
    one, two = (as_json(*QUESTION, *more)["ranks"][0] for more in ((), ("--mtp-layers", 1)))
    assert two["weights"] > one["weights"]
    assert two["activations"] > one["activations"] + 4 * 4096 * 150_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--tp", 5), "num_attention_heads = 32 cannot be shared by 5 ranks"),
        (("--pp", 40), "Qwen/Qwen3-8B has 36, choose a pp x vp"),
        (("--shard", "zero9"), "--shard: 'zero9' is unknown"),
        (("--engine", "megatrn"), "did you mean megatron"),
        (("--dtype", "bf61"), "unknown dtype 'bf61'"),
        (("--source-len", 8), "has no encoder that would read source_len tokens"),
        (("--recompute", "layrnorm"), "unknown recompute 'layrnorm'; did you mean layernorm"),
    ],
)
def test_mistakes_are_a_line(options: tuple[object, ...], message: str) -> None:
    assert message in error(*QUESTION, *options)
