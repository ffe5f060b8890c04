"""Tables of NVIDIA's examples in mixed precision as questions."""

import json

import pytest

from neusight.evaluation.what_if.cases import pair_of
from neusight.evaluation.what_if.mixed_precision import OPERATOR_S

JASPER = {
    "set": "amp_deeplearningexamples", "metric": "time", "mode": "inference", "model": "Jasper (PyTorch)", "n_gpus": 1,
    "told": json.dumps({"batch": "4", "duration": "7.0", "where": "Inference performance"}),
}  # fmt: skip


@pytest.mark.parametrize(("gpu", "spectra"), [("v100-sxm2-16gb", 1), ("a100-sxm-80gb", 0)])
def test_long_filters_are_spectra_in_float32_alone(gpu: str, spectra: int) -> None:
    pair = pair_of({**JASPER, "gpu": gpu})
    assert (len(pair.before.setting.passes), len(pair.after.setting.passes)) == (spectra, 0)
    assert pair.after.request.precision.weights == "float16"


def test_hosts_are_those_of_their_years() -> None:
    pair = pair_of({**JASPER, "gpu": "t4"})
    assert {one.request.engine.host_s_per_operator for one in (pair.before, pair.after)} == {OPERATOR_S}
    assert pair.before.request.batch == pair.after.request.batch == 4
