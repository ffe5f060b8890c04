"""Kernels of many steps priced at once cost what they cost alone."""

from dataclasses import fields

import numpy as np
import pytest

from neusight import Predictor, load_device
from neusight.errors import DeviceError
from neusight.executors import Costs, Options
from neusight.executors.together import BatchedPricer
from neusight.kernels import KernelBatch

GEMM = KernelBatch.from_columns("gemm", m=np.array([512, 4096]), n=1024, k=np.array([64, 2048]))
ONE = KernelBatch.from_columns("gemm", m=np.array([96]), n=96, k=96)
STREAM = KernelBatch.from_columns("elementwise", op="add", elements=2**20, read_bytes=2**23, write_bytes=2**22, flops=0)


class Counted:
    """Prices on an L4, with how many batches were asked for."""

    def __init__(self, predictor: Predictor) -> None:
        self.kernels, self.asked = predictor.kernel_predictor, []

    def __call__(self, batch: KernelBatch) -> Costs:
        self.asked.append(len(batch))
        return self.kernels.cost(batch, load_device("l4"), Options())


def test_costs_are_those_of_each_batch_alone(predictor: Predictor) -> None:
    price = Counted(predictor)
    together = BatchedPricer([GEMM, STREAM, ONE], price)
    assert sorted(price.asked) == [1, 3]
    for batch in (GEMM, STREAM, ONE):
        found, alone = together(batch), predictor.kernel_predictor.cost(batch, load_device("l4"), Options())
        for name in {f.name for f in fields(Costs)} - {"demand", "energy"}:
            one, other = getattr(found, name), getattr(alone, name)
            assert one == pytest.approx(other, rel=1e-6) if one.dtype.kind == "f" else (one == other).all()
        assert found.demand is not None
        assert alone.demand is not None
        assert found.demand.dram_s == pytest.approx(alone.demand.dram_s)
    assert len(price.asked) == 2


def test_what_was_not_gathered_is_priced_when_it_is_asked_for(predictor: Predictor) -> None:
    price = Counted(predictor)
    assert len(BatchedPricer([GEMM], price)(ONE).latency_s) == 1
    assert price.asked == [2, 1]


def test_what_is_refused_together_is_refused_where_it_belongs() -> None:
    def price(batch: KernelBatch) -> Costs:
        if len(batch) > 1 or batch is ONE:
            raise DeviceError("no")
        raise AssertionError

    together = BatchedPricer([ONE, GEMM], price)
    with pytest.raises(DeviceError, match="no"):
        together(ONE)
