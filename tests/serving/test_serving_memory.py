"""What a served model keeps on a device, against what engines logged, and by formula."""

from dataclasses import replace

import pytest

from neusight.devices import load_device
from neusight.engines import engine_named, server_named
from neusight.engines.limits import Site
from neusight.errors import ModelError
from neusight.kernels.schemes import scheme_named
from neusight.plans.stages import RankParameters
from neusight.requests import Plan
from neusight.serving import PassSizes
from neusight.serving.memory import ServingMemory, serving_memory
from neusight.serving.passes import ReplicaPricer
from neusight.workloads.decoders.architecture import decoder_of
from neusight.workloads.decoders.build import step_program, trained_program
from neusight.workloads.decoders.decoder import Decoder
from neusight.workloads.decoders.known import known_decoder
from neusight.workloads.decoders.quantisation import ServingPrecision
from neusight.workloads.decoders.shares import Local, Steps

LLAMA = {"model_type": "llama", "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 32000}
LOGGED = (
    (known_decoder("meta-llama/Llama-2-7b-hf"), 1, 119_408),
    (decoder_of(LLAMA | {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80}, "70b"), 4, 501_712),
    (known_decoder("mistralai/Mixtral-8x7B-v0.1"), 2, 440_176),
    (decoder_of(LLAMA | {"hidden_size": 8192, "intermediate_size": 22016, "num_hidden_layers": 48}, "34b"), 2, 425_648),
)
"""Llama 2 and Code Llama, tp, and the tokens of the cache that vLLM 0.15.1 logged on H100 with 2,048 tokens and 128
sequences a pass (inference-sim/sim-to-real-accuracy-validation, design document of 2026-03-04, section 4.2)."""
HALF = ServingPrecision(dtype="float16", kv_cache="float16")


def kept(decoder: Decoder, tp: int = 1, precision: ServingPrecision = HALF) -> ServingMemory:
    return serving_memory(replica_of(decoder, Plan(tp=tp), precision), PassSizes(2048, 128, 4096))


def replica_of(decoder: Decoder, plan: Plan, precision: ServingPrecision = HALF, engine: str = "vllm") -> ReplicaPricer:
    return ReplicaPricer(
        decoder=decoder, device=load_device("h100-sxm-80gb"), plan=plan, precision=precision,
        engine=server_named(engine), pricer=lambda *_: None,  # type: ignore[arg-type, return-value]
    )  # fmt: skip


@pytest.mark.parametrize(("decoder", "tp", "tokens"), LOGGED, ids=lambda value: getattr(value, "name", None))
def test_the_cache_is_as_large_as_vllm_logged(decoder: Decoder, tp: int, tokens: int) -> None:
    assert kept(decoder, tp).kv_tokens == pytest.approx(tokens, rel=0.01)


def test_parts_add_up_to_the_device() -> None:
    memory = kept(known_decoder("meta-llama/Llama-3.1-8B"))
    assert sum(memory.terms.values()) + memory.reserve == pytest.approx(memory.capacity)
    assert memory.fit.usable_bytes == memory.capacity
    assert memory.fit.needed_bytes + memory.kv_cache == pytest.approx(memory.capacity)
    assert memory.kv_bytes_per_token == 2 * 8 * 128 * 2 * 32


def test_narrower_weights_leave_more_for_the_cache_and_a_narrower_cache_holds_more() -> None:
    decoder = known_decoder("meta-llama/Llama-3.1-8B")
    plain = kept(decoder)
    narrow = kept(decoder, precision=ServingPrecision(quantisation=scheme_named("fp8")))
    eight = kept(decoder, precision=ServingPrecision(kv_cache="float8"))
    assert narrow.weights < 0.6 * plain.weights
    assert narrow.kv_tokens > plain.kv_tokens
    assert eight.kv_tokens == pytest.approx(2 * plain.kv_tokens, rel=1e-4)


def test_what_does_not_fit_says_so() -> None:
    assert not kept(known_decoder("meta-llama/Llama-3.1-70B")).fits
    assert kept(known_decoder("meta-llama/Llama-3.1-70B"), tp=4).fits


@pytest.mark.parametrize(
    ("gpu", "version", "limits"),
    [
        ("h100-sxm-80gb", "", (1024, 8192)),
        ("h200-sxm-141gb", "0.11.1", (1024, 8192)),
        ("a100-sxm-80gb", "", (256, 2048)),
        ("l4", "", (256, 2048)),
        ("a100-sxm-80gb", "0.5", (256, 8192)),
        ("tpu-v6e", "", (256, 1024)),
        ("tpu-v5p", "", (256, 256)),
        ("tpu-v4", "", (256, 2048)),
    ],
)
def test_vllm_starts_with_larger_limits_on_larger_devices(gpu: str, version: str, limits: tuple[int, int]) -> None:
    server = server_named("vllm", version).serving.started_on(Site(device=load_device(gpu)))
    assert (server.max_num_seqs, server.max_num_batched_tokens) == limits


@pytest.mark.parametrize(
    ("kv_tokens", "context", "seqs"), [(441_296, 131_072, 2048), (441_296, 65_536, 3447), (441_296, 8192, 4096),
                                       (1000, 8192, 500)]
)  # fmt: skip
def test_running_seqs_of_sglang_follows_its_cache(kv_tokens: int, context: int, seqs: int) -> None:
    server = server_named("sglang").serving.started_on(Site(device=load_device("h100-sxm-80gb")))
    assert server.running_seqs(kv_tokens, context) == seqs


@pytest.mark.parametrize(
    ("gpu", "tokens"),
    [("l4", 2048), ("l40s", 4096), ("a100-sxm-80gb", 8192), ("h100-sxm-80gb", 8192), ("b200-sxm-180gb", 16384)],
)
def test_started_on_cuts_prompts_of_sglang_by_memory(gpu: str, tokens: int) -> None:
    assert server_named("sglang").serving.started_on(Site(device=load_device(gpu))).max_num_batched_tokens == tokens


@pytest.mark.parametrize(
    ("gpu", "version", "degrees", "kept_mib"),
    [
        ("h100-sxm-80gb", "", {}, 512 + 1.5 * 8192 + 2 * 256 + 128),
        ("h100-sxm-80gb", "0.5.9", {"ranks": 4, "stages": 2}, 512 + 1.5 * 8192 + 2 * 512 + 8 * 128),
        ("l4", "0.5.5", {}, 512 + 1.5 * 2048 + 2 * 24 + 128),
        ("h200-sxm-141gb", "0.5.3", {"ranks": 8, "groups": 8}, 512 + 1.5 * 8192 + (2 + 8 * 4.5) * 512 + 8 * 128),
        ("h200-sxm-141gb", "0.4.9.post6", {"ranks": 8, "groups": 8}, 1024 * (12 + 8 / 2 + 4)),
    ],
)
def test_started_on_keeps_memory_of_sglang_as_it_computes(
    gpu: str, version: str, degrees: dict[str, int], kept_mib: float
) -> None:
    device = load_device(gpu)
    server = server_named("sglang", version).serving.started_on(Site(device=device, **degrees))
    assert server.memory_share == round(1 - kept_mib * 2**20 / device.usable_bytes, 3)
    assert server.max_num_batched_tokens * degrees.get("groups", 1) == (2048 if gpu == "l4" else 8192)


def test_started_on_keeps_a_share_by_ranks_in_older_sglang() -> None:
    device = load_device("h100-sxm-80gb")
    servers = [server_named("sglang", "0.4.4").serving.started_on(Site(device=device, ranks=n)) for n in (1, 2, 4, 8)]
    assert [server.memory_share for server in servers] == [0.88, 0.87, 0.85, 0.81]


@pytest.mark.parametrize(("engine", "seqs"), [("sglang", 24), ("vllm", 1024)])
def test_started_on_lets_few_speculate_in_sglang(engine: str, seqs: int) -> None:
    site = Site(device=load_device("h100-sxm-80gb"), ranks=2, groups=2, speculates=True)
    assert server_named(engine).serving.started_on(site).running_seqs(10**6, 8192) == seqs


@pytest.mark.parametrize(
    ("version", "context", "tokens"),
    [("0.6.3", 1024, 2048), ("0.6.3", 8192, 8192), ("0.6.3", 131_072, 512), ("0.7.3", 131_072, 2048), ("", 8192, 2048)],
)
def test_pass_tokens_of_older_vllm_follow_the_context(version: str, context: int, tokens: int) -> None:
    assert server_named("vllm", version).serving.pass_tokens(context) == tokens


def test_memory_of_weights_takes_activations_from_the_rest() -> None:
    """Beside weights and cache, passes fill what the share leaves."""
    replica = replica_of(known_decoder("meta-llama/Llama-3.1-8B"), Plan(), engine="sglang")
    memory = serving_memory(replica, PassSizes(8192, 256, 4096), share=0.8)
    assert memory.kv_cache == pytest.approx(0.8 * replica.device.usable_bytes - memory.weights)
    assert memory.reserve == pytest.approx(0.2 * replica.device.usable_bytes - memory.activations)


def test_the_stage_decides_whose_cache_holds_fewest_tokens() -> None:
    """Of 32 layers on 3 stages the first two have 11, of which the first has the embedding too."""
    decoder = known_decoder("meta-llama/Llama-3.1-8B")
    one, three = (serving_memory(replica_of(decoder, Plan(pp=n)), PassSizes(2048, 128, 4096)) for n in (1, 3))
    table, norm = 2 * decoder.vocab * decoder.hidden, 2 * decoder.hidden
    assert three.weights == pytest.approx(11 / 32 * (one.weights - 2 * table - norm) + table)
    assert three.kv_bytes_per_token == pytest.approx(11 / 32 * one.kv_bytes_per_token)


def test_a_rank_that_serves_holds_what_a_rank_that_trains_holds() -> None:
    """Passes over a cache and training go through the same operations, which say what they hold."""
    for name in ("meta-llama/Llama-3.1-8B", "openai/gpt-oss-120b", "deepseek-ai/DeepSeek-V3"):
        decoder = known_decoder(name)
        server, engine = (
            replace(e, vocabulary_multiple=1) for e in (server_named("vllm"), engine_named("megatron-te"))
        )
        served = step_program(decoder, Steps.of(decodes=1), ServingPrecision(), Plan(tp=4), server)
        trained = trained_program(decoder, Local(batch=1, seq_len=64, tp=4, etp=4), engine)
        for segments in zip(served.segments, trained.segments, strict=True):
            mine, others = (RankParameters.of(segment.held) for segment in segments)
            assert mine == others


def test_versions_are_numbers() -> None:
    assert server_named("vllm", "v0.7.3").serving.era == "vllm before 0.8"
    with pytest.raises(ModelError, match="version 'newest' of vllm is no release: write it like"):
        server_named("vllm", "newest")


@pytest.mark.parametrize(
    ("engine", "name", "left_out"),
    [
        ("llama.cpp", "meta-llama/Llama-3.1-8B", 128_256 * 4096),
        ("llama.cpp", "meta-llama/Llama-3.2-1B", 0),
        ("mlc-llm", "meta-llama/Llama-3.1-8B", 0),
        ("exllamav2", "meta-llama/Llama-3.1-8B", 0),
    ],
)
def test_serving_memory_leaves_out_a_table_that_the_host_keeps(engine: str, name: str, left_out: int) -> None:
    decoder = known_decoder(name)
    memory = serving_memory(replica_of(decoder, Plan(), engine=engine), PassSizes(512, 1, 1024))
    assert memory.weights == pytest.approx(2 * decoder.parameters, rel=1e-6)
    assert memory.on_host == memory.weights - memory.shares["weights"] == 2 * left_out
