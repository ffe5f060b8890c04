"""What kernels cost on a device, with how wrong that may be."""

from __future__ import annotations

NORMAL_90 = 1.645
"""Standard deviations to either side that enclose 90 % of a normal distribution."""
