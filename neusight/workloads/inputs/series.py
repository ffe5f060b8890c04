"""Time series: a context to look at, with what is known of its times and of the series themselves."""

from __future__ import annotations

from neusight.workloads.inputs.layouts import Ways, floats, integers, layout
from neusight.workloads.inputs.sizes import LARGEST_DEFAULT_SEQ_LEN, Sizes


def _context(sizes: Sizes) -> int:
    """Past points, and those that lags reach back to."""
    length = min(sizes.of("whole", "context_length", "prediction_length") or 512, LARGEST_DEFAULT_SEQ_LEN)
    lags = sizes.of("whole", "lags_sequence")
    return length + max(lags) if lags else length


@layout("past_values")
def past(sizes: Sizes) -> Ways:
    """Shape (batch, time, channels), or (batch, time) of single series."""
    channels = sizes.of("whole", "num_input_channels", "input_size") or 1
    several, single = floats(sizes.batch, _context(sizes), channels), floats(sizes.batch, _context(sizes))
    stated = sizes.of("whole", "num_input_channels") is not None
    return (several, single) if stated or channels > 1 else (single, several)


@layout("forecast_context_len")
def looked_at(sizes: Sizes) -> Ways:
    """How many past points a model looks at that would else fill them up to its longest context."""
    return (_context(sizes),)


@layout("past_observed_mask")
def observed(sizes: Sizes) -> Ways:
    """Which points were seen: as large as the past."""
    return past(sizes)


@layout("future_values")
def future(sizes: Sizes) -> Ways:
    """What follows, which training and the decoder are given, shape (batch, time), with channels where several."""
    length, channels = sizes.of("whole", "prediction_length") or 1, sizes.of("whole", "input_size") or 1
    single, several = floats(sizes.batch, length), floats(sizes.batch, length, channels)
    return (single, several) if channels == 1 else (several, single)


@layout("past_time_features")
def past_times(sizes: Sizes) -> Ways:
    """Calendar features of each past point."""
    return (floats(sizes.batch, _context(sizes), _times(sizes)),)


@layout("future_time_features")
def future_times(sizes: Sizes) -> Ways:
    """Calendar features of each point that follows."""
    return (floats(sizes.batch, sizes.of("whole", "prediction_length") or 1, _times(sizes)),)


def _times(sizes: Sizes) -> int:
    return sizes.of("whole", "num_time_features") or 0


@layout("static_categorical_features")
def categories(sizes: Sizes) -> Ways:
    """Which series each is."""
    count = sizes.of("whole", "num_static_categorical_features") or 0
    return (integers(sizes.batch, count) if count else None,)


@layout("static_real_features")
def figures(sizes: Sizes) -> Ways:
    """Numbers that belong to a whole series."""
    count = sizes.of("whole", "num_static_real_features") or 0
    return (floats(sizes.batch, count) if count else None,)


@layout("past_values_padding")
def padding(sizes: Sizes) -> Ways:
    """Which points are padding."""
    return (integers(sizes.batch, _context(sizes)),)


@layout("freq")
def frequency(sizes: Sizes) -> Ways:
    """How often each series was looked at: one of few classes."""
    return (integers(sizes.batch, 1),)
