"""Records of columns: rows are taken and joined field by field, nested records with them."""

from dataclasses import dataclass

import numpy as np
import pytest

from neusight.kernels import KernelBatch
from neusight.kernels.columns import ColumnRecord


@dataclass(frozen=True)
class Timed(ColumnRecord):
    name: str
    batch: KernelBatch
    features: np.ndarray


TIMED = Timed("a", KernelBatch.from_columns("gemm", m=np.arange(1, 6), n=8, k=8), np.arange(10.0).reshape(5, 2))


@pytest.mark.parametrize("index", [np.array([3, 1]), np.array([False, True, False, True, False])])
def test_take_selects_rows_of_all_columns(index: np.ndarray) -> None:
    taken = TIMED.take(index)
    assert taken.name == "a"
    assert len(taken) == 2
    np.testing.assert_array_equal(taken.batch["m"], TIMED.batch["m"][index])
    np.testing.assert_array_equal(taken.features, TIMED.features[index])


def test_joined_parts_are_the_whole() -> None:
    whole = Timed.joined([TIMED.take(np.arange(2)), TIMED.take(np.arange(2, 5))])
    np.testing.assert_array_equal(whole.batch["m"], TIMED.batch["m"])
    np.testing.assert_array_equal(whole.features, TIMED.features)
