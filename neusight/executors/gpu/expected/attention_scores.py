"""Scores of fused attention: which kernels they are, in what they are computed, and what lies in memory for them."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from neusight.devices.spec import GpuSpec
from neusight.executors.gpu.expected.matrix import WIDE_BYTES, Product, clock_gain
from neusight.executors.gpu.expected.times import hot_share
from neusight.kernels import KernelBatch
from neusight.kernels.conditions import Conditions
from neusight.kernels.implementations import Traits, traits_of
from neusight.kernels.work import by_distinct, cache_bytes, element_bytes, value_width, work_of
from neusight.laws.physics import Physics
from neusight.quick_dataclasses import dataclass

HOPPER_ROWS = 64.0
"""Rows of a matrix instruction on the GPUs for which traits tell the rows of a block (cited: PTX ISA,
``wgmma.m64nNk16``)."""
NARROW_WIDTHS = (128, 192)
"""Of heads, for which TensorRT-LLM's 8-bit products before Hopper's outrun 16-bit ones (assumption: seen on L40S and
RTX PRO 6000; 8-bit attention of TensorRT-LLM by width of a head would tell)."""


@dataclass(frozen=True)
class Scores:
    """Scores of attention kernels, their device and implementation; properties are columns of shape (n,)."""

    batch: KernelBatch
    device: GpuSpec
    conditions: Conditions
    physics: Physics

    @cached_property
    def traits(self) -> Traits:
        """What the kernels' implementations are like."""
        return traits_of("attention", self.conditions)

    @cached_property
    def q(self) -> np.ndarray:
        """Queries of a sequence."""
        return self.batch["q_len"].astype(float)

    @cached_property
    def decode(self) -> np.ndarray:
        """Whether one query follows on what is cached, or a prompt of one token runs as if it did."""
        return (self.batch["q_len"] == 1) & ((self.batch["kv_len"] > 1) | self.traits["decodes_prompts"])

    @cached_property
    def chosen(self) -> np.ndarray:
        """Whether each query attends to the keys that it chose."""
        return self.batch["selected"] > 0

    @cached_property
    def sparse(self) -> np.ndarray:
        """Whether each query works by itself: on keys that it chose, or on all to choose of them."""
        return self.chosen | (self.batch["op"] == "indexer")

    @cached_property
    def made(self) -> np.ndarray:
        """Whether keys and values of a prompt are made of a latent cache, before the kernel (DeepSeek-V2, 2.1)."""
        apart = value_width(self.batch) != self.batch["head_dim"]
        return apart & ~self.batch["shared_kv"] & (self.batch["op"] == "forward")

    @cached_property
    def encoder(self) -> np.ndarray:
        """Whether all queries see all keys, which no cache holds."""
        b = self.batch
        return ~b["causal"] & (b["q_len"] == b["kv_len"]) & (b["op"] == "forward") & ~self.chosen

    @cached_property
    def whole(self) -> np.ndarray:
        """Whether the kernel of prompts decodes a latent cache: its block of heads walks over all keys of a request."""
        return self.traits["whole_latent_decode"] & self.decode & self.batch["shared_kv"] & ~self.asynchronous

    @cached_property
    def asynchronous(self) -> np.ndarray:
        """Whether products run beside the rest of a warp's work."""
        facts, widths = self.device.facts, self.traits["tall_widths"]
        compiled = (facts.matrix_rows <= HOPPER_ROWS) | (padding(self.batch["head_dim"], widths) == 1.0)
        return self.traits["asynchronous"] & facts.reads_shared_memory & compiled

    @cached_property
    def tall(self) -> np.ndarray:
        """Whether two tiles of more rows than Hopper's take turns between products and softmax."""
        return self.asynchronous & (self.device.facts.matrix_rows > HOPPER_ROWS)

    @cached_property
    def cache_size(self) -> np.ndarray:
        """Bytes of an element of keys and values that the kernel reads: of a prompt by itself, maybe as computed."""
        alone = (self.batch["q_len"] == self.batch["kv_len"]) & ~self.decode
        return np.where((self.traits["reads_computed"] & alone) | self.made, self.stored_size, self.written_size)

    @cached_property
    def written_size(self) -> np.ndarray:
        """Bytes of an element of a cache."""
        return cache_bytes(self.batch)

    @cached_property
    def stored_size(self) -> np.ndarray:
        """Bytes of an element of queries."""
        return element_bytes(self.batch)

    @cached_property
    def narrowed(self) -> np.ndarray:
        """Whether 16-bit queries are made 8-bit for an 8-bit cache: warpgroup products take one type. A latent cache
        is widened instead.
        """
        able = self.asynchronous & ~self.batch["shared_kv"] & ("float8" in self.device.matrix_flops_per_s)
        return (self.cache_size < 2.0) & (self.stored_size == 2.0) & able

    @cached_property
    def widened(self) -> np.ndarray:
        """Whether 8-bit products run at the rate of 16-bit ones, for want of kernels for a width of a head."""
        wanting = self.traits["widens_heads"] & ~np.isin(self.batch["head_dim"], NARROW_WIDTHS) & ~self.decode
        return wanting & (self.stored_size < WIDE_BYTES) & (not self.device.facts.reads_shared_memory)

    @cached_property
    def size(self) -> np.ndarray:
        """Bytes of an element in arithmetic."""
        return np.where(self.narrowed, self.cache_size, self.stored_size)

    @cached_property
    def flops_per_s(self) -> np.ndarray:
        """Peak in the dtype of the arithmetic [FLOP/s]."""
        rates = self.device.matrix_flops_per_s
        stated = by_distinct(self.batch["dtype"], self.device.gemm_flops_per_s)
        stated = np.where(self.widened, np.minimum(rates.get("float16", np.inf), stated), stated)
        return np.where(self.narrowed, rates.get("float8", np.inf), stated)

    @cached_property
    def product(self) -> Product:
        """A product in the same arithmetic."""
        return Product(self.q, self.q, self.q, self.q, self.size, self.size, self.size, self.flops_per_s)

    @cached_property
    def clock(self) -> float:
        """Clock of the cores under load [Hz]."""
        return self.device.boost_clock_hz * clock_gain(self.device, self.physics)

    @cached_property
    def width(self) -> np.ndarray:
        """Elements that a block loads for a key and its value."""
        head, value = self.batch["head_dim"], value_width(self.batch)
        return np.where(
            self.batch["shared_kv"] & ~self.traits["loads_latent_twice"], np.maximum(head, value), head + value
        )

    @cached_property
    def flops(self) -> np.ndarray:
        """Of a score: 2 (d + v) forward, 6 d + 4 v backward, 2 d for an indexer."""
        head, value = self.batch["head_dim"].astype(float), value_width(self.batch)
        return np.where(self.batch["op"] == "backward", 6.0 * head + 4.0 * value, 2.0 * (head + value))

    @cached_property
    def hot(self) -> np.ndarray:
        """Share of the operands that L2 holds since their last use."""
        return hot_share(self.device, self.conditions.cycled_bytes, self.physics)

    @cached_property
    def cold_bytes(self) -> np.ndarray:
        """Of keys, values, queries and results, those that DRAM moves."""
        return work_of(self.batch).bytes * (1.0 - self.hot)

    @cached_property
    def query_bytes(self) -> np.ndarray:
        """Bytes of all queries."""
        return self.batch["batch"] * self.batch["heads"] * self.q * self.batch["head_dim"] * self.stored_size

    @cached_property
    def result_elements(self) -> np.ndarray:
        """Elements of all results."""
        return self.batch["batch"] * self.batch["heads"] * self.q * value_width(self.batch)


def padding(head_dim: np.ndarray, widths: np.ndarray) -> np.ndarray:
    """Columns that are computed over those of a head: of the narrowest kernel of those ``widths`` that takes it."""
    padded = head_dim.astype(float)
    for listed in np.unique(widths):
        compiled = np.array([*map(float, str(listed).split()), np.inf])
        narrowest = compiled[np.searchsorted(compiled, head_dim)]
        padded = np.where((widths == listed) & np.isfinite(narrowest), narrowest, padded)
    return padded / head_dim
