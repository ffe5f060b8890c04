"""Programs that generate for one caller: what their host launches, and how quantised weights run."""

from math import prod

import numpy as np
import pytest

from neusight.api import Predictor
from neusight.devices import load_device
from neusight.engines import server_named
from neusight.errors import ModelError
from neusight.kernels.precision import GGUF_BITS, stored_bytes
from neusight.kernels.schemes import scheme_named, schemes_by_name
from neusight.laws.doubts import by_cause
from neusight.requests import Plan
from neusight.serving import Setup, Static
from neusight.workloads.decoders.architecture import decoder_of
from neusight.workloads.decoders.build import step_program
from neusight.workloads.decoders.quantisation import ServingPrecision
from neusight.workloads.decoders.shares import Steps
from neusight.workloads.dispatch import DISPATCHES
from neusight.workloads.program import Part

CONFIG = {
    "model_type": "llama", "hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 6,
    "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 8192,
}  # fmt: skip
ONE_AND_MANY = Steps.of(decodes=[1, 64], decode_cached=127)


def parts_of(scheme: str, engine: str = "transformers", steps: Steps = ONE_AND_MANY) -> list[Part]:
    precision = ServingPrecision(quantisation=scheme_named(scheme))
    program = step_program(decoder_of(CONFIG, "small"), steps, precision, Plan(), server_named(engine))
    return [part for part in program.counted_parts if part.name.startswith("down")]


def runs(part: Part) -> list[int]:
    return np.broadcast_to(part.runs, (2,)).tolist()


def test_a_layer_of_transformers_counts_every_operator_that_it_writes(predictor: Predictor) -> None:
    """Seven products and an attention of libraries; two norms of eight, a rotation of twelve, a gated activation of two
    and two joins of the cache, two sums: 12 + 2 + 2 + 2 pointwise ones beside two reductions with seven each.
    """
    step = Steps.of(decodes=1, decode_cached=128)
    one, two = (
        Setup(engine="transformers")
        .replica(decoder_of(CONFIG | {"num_hidden_layers": n}, "small"), load_device("l4"), predictor._priced)
        .dispatches(step)[0]
        for n in (1, 2)
    )
    norm = DISPATCHES["reduction"] + 7
    assert two - one == pytest.approx(8 * DISPATCHES["library"] + 2 * norm + 12 + 2 + 2 + 2)


def test_every_engine_that_generates_answers_and_is_called_by_a_program(predictor: Predictor) -> None:
    for engine in ("transformers", "gpt-fast", "tinychat", "llama.cpp"):
        answer = predictor.serving(decoder_of(CONFIG, "small"), "l4", Static(batch=1, isl=8, osl=8), engine=engine)
        assert engine in answer.launch
        assert answer.output_tokens_per_s.mean > 0


@pytest.mark.parametrize(
    ("engine", "device", "others"),
    [
        ("tensorrt-llm", "mi300x", "nvidia"), ("lmdeploy", "gaudi2", "nvidia"), ("transformers-neuronx", "l4", "aws"),
        ("optimum-habana", "h100-sxm-80gb", "intel"),
    ],
)  # fmt: skip
def test_engines_of_one_vendor_refuse_devices_of_others(
    predictor: Predictor, engine: str, device: str, others: str
) -> None:
    with pytest.raises(ModelError, match=f"{engine} runs on devices of {others} alone, not on {device}"):
        predictor.serving(decoder_of(CONFIG, "small"), device, Static(batch=1, isl=8, osl=8), engine=engine)


def test_a_cache_is_as_large_as_its_sequences(predictor: Predictor) -> None:
    decoder, load = decoder_of(CONFIG, "small"), Static(batch=3, isl=100, osl=28)
    kept = predictor.serving(decoder, "l4", load, engine="gpt-fast").memory.kv_cache
    more = predictor.serving(decoder, "l4", load, max_num_seqs=6, engine="gpt-fast").memory.kv_cache
    assert more == pytest.approx(2 * kept)
    assert kept == pytest.approx(3 * (100 + 28 + 1) * decoder.kv_bytes(1, "bfloat16", 1))


def test_transformers_copies_its_cache_to_a_longer_one() -> None:
    program = step_program(
        decoder_of(CONFIG, "small"), ONE_AND_MANY, ServingPrecision(), Plan(), server_named("transformers")
    )
    copies = [part for part in program.counted_parts if part.name in ("key cache", "value cache")]
    assert len(copies) == 2
    for part in copies:
        assert part.batch["read_bytes"].tolist() == [128 * 4 * 128 * 2, 64 * 128 * 4 * 128 * 2]


def test_nf4_is_widened_by_a_kernel_of_its_own_for_more_than_a_row() -> None:
    fused, widened, plain = parts_of("nf4")
    weights = 1024 * 2048
    assert runs(fused) == [6, 0]
    assert runs(widened) == runs(plain) == [0, 6]
    assert fused.batch["weight_dtype"][0] == "nf4"
    assert plain.batch["weight_dtype"][0] == ""
    assert widened.batch["read_bytes"][1] == weights * (0.5 + 4 / 64)
    assert widened.batch["write_bytes"][1] == 2 * weights
    assert [part.python_calls for part in (fused, widened, plain)] == [1, 2, 0]


def test_scales_that_are_quantised_too_are_widened_before() -> None:
    scales, *_ = parts_of("nf4_double")
    assert scales.name.endswith("scales")
    assert scales.batch["write_bytes"][0] == 4 * 1024 * 2048 // 64
    assert scheme_named("nf4_double").weight_bytes("bfloat16") == pytest.approx(0.5 + 1 / 64 + 4 / (64 * 256))


def test_int8_products_of_torch_want_seventeen_rows() -> None:
    *narrow, widened, product = parts_of("int8_dynamic", "gpt-fast")
    assert all(runs(part) == [0, 6] for part in narrow)
    assert runs(widened) == runs(product) == [6, 0]
    assert product.batch["dtype"][0] == "float32"
    assert widened.batch["write_bytes"][0] == 4 * widened.batch["read_bytes"][0]


def test_outliers_add_kernels_and_no_product_of_the_width() -> None:
    plain, outliers = parts_of("llm_int8"), parts_of("llm_int8_outliers")
    assert len(outliers) > len(plain)
    more = [part for part in outliers if part.name.endswith("outliers") and part.batch.family == "gemm"]
    assert [part.batch["k"][0] for part in more] == [8]


def test_fused_schemes_are_one_product() -> None:
    for scheme, engine in (("int4_linear", "gpt-fast"), ("w4a16", "tinychat"), ("none", "llama.cpp"), ("fp8", "vllm")):
        assert len(parts_of(scheme, engine)) == 1


def test_a_matrix_is_quantised_where_it_stays(predictor: Predictor) -> None:
    """The largest is that of the head, 8192 x 1024: in 16 bits and in float32, less its int8."""
    answer = predictor.serving(
        decoder_of(CONFIG, "small"), "l4", Static(batch=1, isl=1, osl=2), engine="gpt-fast", dtype="int8_linear",
        max_num_seqs=1, max_num_batched_tokens=1,
    )  # fmt: skip
    assert answer.memory.activations == pytest.approx(prod((8192, 1024)) * (2 + 4 - 1))


def test_bits_of_llama_cpp_are_those_of_its_table() -> None:
    assert 8 * stored_bytes("q4_k_m") == pytest.approx(4.85)
    assert set(GGUF_BITS) <= set(schemes_by_name())


def test_hosts_differ_where_they_are_waited_for(predictor: Predictor) -> None:
    step = Steps.of(decodes=1, decode_cached=16)

    def host_spread(engine: str) -> float:
        replica = Setup(engine=engine).replica(
            decoder_of(CONFIG, "small"), load_device("h100-sxm-80gb"), predictor._priced
        )
        doubts = replica.predict(step).doubts
        return by_cause({key: size[0] for key, size in doubts.items()}).get("host", 0.0)

    waits, replays = map(host_spread, ("transformers", "gpt-fast"))
    assert waits == pytest.approx(server_named("transformers").host_spread, rel=0.02)
    assert replays == 0.0
