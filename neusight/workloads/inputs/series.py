"""Inputs along time: sound, as waves or spectrograms, and time series with the features of their times."""

from __future__ import annotations

from neusight.defaults import default_seq_len
from neusight.workloads.inputs.sizes import (
    FRAMES_PER_SECOND,
    Layouts,
    Sizes,
    Ways,
    floats,
    integers,
)
from neusight.workloads.tensors import Known


def _context(sizes: Sizes) -> int:
    """Past points, and those that lags reach back to."""
    length: int = default_seq_len(sizes.of("whole", "context_length", "prediction_length")).value
    lags = sizes.of("whole", "lags_sequence")
    return length + max(lags) if lags else length


def past(sizes: Sizes) -> Ways:
    """Shape (batch, time, channels), or (batch, time) of single series."""
    channels = sizes.of("whole", "num_input_channels", "input_size") or 1
    several, single = floats(sizes.batch, _context(sizes), channels), floats(sizes.batch, _context(sizes))
    has_channels = sizes.of("whole", "num_input_channels") is not None
    return (several, single) if has_channels or channels > 1 else (single, several)


def future(sizes: Sizes) -> Ways:
    """Values after the context, which training and the decoder read, shape (batch, time), with channels where
    several.
    """
    length, channels = sizes.of("whole", "prediction_length") or 1, sizes.of("whole", "input_size") or 1
    single, several = floats(sizes.batch, length), floats(sizes.batch, length, channels)
    return (single, several) if channels == 1 else (several, single)


def _times(sizes: Sizes) -> int:
    return sizes.of("whole", "num_time_features") or 0


def categories(sizes: Sizes) -> Ways:
    """Which series each is."""
    count = sizes.of("whole", "num_static_categorical_features") or 0
    return (integers(sizes.batch, count) if count else None,)


def figures(sizes: Sizes) -> Ways:
    """Numbers that belong to a whole series."""
    count = sizes.of("whole", "num_static_real_features") or 0
    return (floats(sizes.batch, count) if count else None,)


_BINS = (
    *("feature_projection_input_dim", "input_feat_size", "input_dim", "num_mel_bins", "mel_bins", "n_mels"),
    *("input_feat_per_channel", "feature_size", "num_mels", "input_size", "n_mel_channels", "model_in_dim"),
)
_STACKED = (2, 4)
"""Windows that some models take as one."""
_USUAL_BINS = (80, 128)
"""Mel bins of speech models that state none."""


def _bins(sizes: Sizes) -> int:
    """Bins of a window; where several windows are stacked, of all of them."""
    bins = int(sizes.of("audio", *_BINS) or _USUAL_BINS[0])
    return bins * int(sizes.of("audio", "num_stacked_frames") or 1)


def _windows(sizes: Sizes) -> int:
    """Number of windows: as many as the encoder has places for, twice where two strides halve them; else 10 ms each, as
    with a wave.
    """
    free = sizes.extents.seconds is None and "input_values" not in sizes.parameters
    if free and (most := sizes.of("audio", "max_source_positions")):
        return int(most) * (1 if sizes.of("audio", "num_conv_layers") else 2)
    return round(sizes.seconds * FRAMES_PER_SECOND)


def spectrum(sizes: Sizes) -> Ways:
    """Shape (batch, bins, windows) or (batch, windows, bins), with a channel where models read it as an image."""
    batch, bins, windows = sizes.batch, _bins(sizes), _windows(sizes)
    image = floats(batch, 1, sizes.of("audio", "spec_size", "max_length") or windows, bins)
    first, last = floats(batch, bins, windows), floats(batch, windows, bins)
    more = [] if sizes.of("audio", *_BINS) else [floats(batch, windows, bins) for bins in _USUAL_BINS[1:]]
    more += [floats(batch, windows // count, bins * count) for count in _STACKED]
    time_first = sizes.of("audio", "num_conv_layers", "feature_projection_input_dim", "input_feat_size")
    return (last, first, image, *more) if time_first else (first, last, image, *more)


def wave(sizes: Sizes) -> Ways:
    """Shape (batch, samples), or with a channel; of spectrogram transformers (batch, windows, bins)."""
    batch = sizes.batch
    if (windows := sizes.of("audio", "max_length")) and sizes.of("audio", "num_mel_bins"):
        return (floats(batch, windows, _bins(sizes)),)
    samples = sizes.samples
    channels = sizes.of("audio", "audio_channels", "channels") or 1
    return floats(batch, samples), floats(batch, channels if isinstance(channels, int) else 1, samples)


_FEATURES = ("input_features", "audio_input_embeds", "audio_features", "audio_input_features", "audio_mel")
_MASKS = ("feature_attention_mask", "input_features_mask", "input_feature_mask", "audio_mel_mask")


def windows_mask(sizes: Sizes) -> Ways:
    """Which windows are no padding, shape (batch, windows): all; models that can run without are given none."""
    shape = sizes.batch, _windows(sizes)
    return None, Known.ones(*shape), Known.ones(*shape, dtype="bool")


LAYOUTS: Layouts = {
    ("past_values",): past,
    # How many past points a model looks at that would else fill them up to its longest context.
    ("forecast_context_len",): lambda s: (_context(s),),
    # Which points were seen: as large as the past.
    ("past_observed_mask",): lambda s: past(s),
    ("future_values",): future,
    # Calendar features of each past point.
    ("past_time_features",): lambda s: (floats(s.batch, _context(s), _times(s)),),
    # Calendar features of each point that follows.
    ("future_time_features",): lambda s: (floats(s.batch, s.of("whole", "prediction_length") or 1, _times(s)),),
    ("static_categorical_features",): categories,
    ("static_real_features",): figures,
    # Which points are padding.
    ("past_values_padding",): lambda s: (integers(s.batch, _context(s)),),
    # How often each series was looked at: one of few classes.
    ("freq",): lambda s: (integers(s.batch, 1),),
    (*_FEATURES, "spectrogram"): spectrum,
    ("input_values", "audio_values", "audio_input_values", "input_audio"): wave,
    (*_MASKS, "audio_attention_mask", "padding_mask"): windows_mask,
    # Codes of each frame and codebook, shape (batch, codebooks, frames).
    ("audio_codes", "codes"): lambda s: (
        integers(s.batch, s.of("audio", "num_quantizers", "n_codebooks") or 8, round(s.seconds * 50)),
    ),
}
"""Makers by the names of inputs."""
