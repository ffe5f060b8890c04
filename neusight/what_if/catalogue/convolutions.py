"""Algorithms of convolutions."""

from __future__ import annotations

from neusight.errors import InapplicableError
from neusight.steps.questions import StepQuestion
from neusight.transforms.passes import EARLY, Pass
from neusight.transforms.spectra import with_spectra
from neusight.what_if.transforms import transform
from neusight.workloads.target import TargetDevice


@transform("fft-convolutions", group="launch", source="torch.backends.cudnn.benchmark; cuDNN API, ALGO_FFT_TILING")
def fft_convolutions(step: StepQuestion) -> StepQuestion:
    """Convolutions of long filters along one extent in float32 as products of spectra, where these take less time."""
    if step.precision.convolutions and TargetDevice.of(step.device).tf32:
        raise InapplicableError("convolutions run in TF32 on matrix units: --dtype float32_ieee keeps them in float32")
    rates = step.device.gemm_flops_per_s("float32"), step.device.dram_bandwidth_bytes_per_s
    return step.changed_by(Pass(part="convolution", order=EARLY, change=with_spectra, arguments=rates))
