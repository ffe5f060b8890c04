"""Sound: waves, or spectrograms of as many seconds as were asked for."""

from __future__ import annotations

from neusight.workloads.inputs.layouts import Ways, floats, integers, layout
from neusight.workloads.inputs.sizes import FRAMES_PER_SECOND, Sizes
from neusight.workloads.tensors import Known

_BINS = (
    *("feature_projection_input_dim", "input_feat_size", "input_dim", "num_mel_bins", "mel_bins", "n_mels"),
    *("input_feat_per_channel", "feature_size", "num_mels", "input_size", "n_mel_channels", "model_in_dim"),
)
_STACKED = (2, 4)
"""Windows that some models take as one."""
_USUAL_BINS = (80, 128)
"""Of speech models that state none."""


def _bins(sizes: Sizes) -> int:
    """Bins of a window; where several windows are stacked, of all of them."""
    bins = int(sizes.of("audio", *_BINS) or _USUAL_BINS[0])
    return bins * int(sizes.of("audio", "num_stacked_frames") or 1)


def _windows(sizes: Sizes) -> int:
    """As many as the encoder has places for, twice where two strides halve them; else 10 ms each, as beside a wave."""
    free = sizes.extents.seconds is None and "input_values" not in sizes.parameters
    if free and (most := sizes.of("audio", "max_source_positions")):
        return int(most) * (1 if sizes.of("audio", "num_conv_layers") else 2)
    return round(sizes.seconds * FRAMES_PER_SECOND)


@layout("input_features", "audio_input_embeds", "audio_features", "audio_input_features", "audio_mel", "spectrogram")
def spectrum(sizes: Sizes) -> Ways:
    """Shape (batch, bins, windows) or (batch, windows, bins), with a channel where models read it as an image."""
    batch, bins, windows = sizes.batch, _bins(sizes), _windows(sizes)
    image = floats(batch, 1, sizes.of("audio", "spec_size", "max_length") or windows, bins)
    first, last = floats(batch, bins, windows), floats(batch, windows, bins)
    more = [] if sizes.of("audio", *_BINS) else [floats(batch, windows, bins) for bins in _USUAL_BINS[1:]]
    more += [floats(batch, windows // count, bins * count) for count in _STACKED]
    time_first = sizes.of("audio", "num_conv_layers", "feature_projection_input_dim", "input_feat_size")
    return (last, first, image, *more) if time_first else (first, last, image, *more)


@layout("input_values", "audio_values", "audio_input_values", "input_audio")
def wave(sizes: Sizes) -> Ways:
    """Shape (batch, samples), or with a channel; of spectrogram transformers (batch, windows, bins)."""
    batch = sizes.batch
    if (windows := sizes.of("audio", "max_length")) and sizes.of("audio", "num_mel_bins"):
        return (floats(batch, windows, _bins(sizes)),)
    samples = sizes.samples
    channels = sizes.of("audio", "audio_channels", "channels") or 1
    return floats(batch, samples), floats(batch, channels if isinstance(channels, int) else 1, samples)


_MASKS = ("feature_attention_mask", "input_features_mask", "input_feature_mask", "audio_mel_mask")


@layout(*_MASKS, "audio_attention_mask", "padding_mask")
def windows_mask(sizes: Sizes) -> Ways:
    """Which windows are no padding, shape (batch, windows): all; models that can run without are given none."""
    shape = sizes.batch, _windows(sizes)
    return None, Known.ones(*shape), Known.ones(*shape, dtype="bool")


@layout("audio_codes", "codes")
def codes(sizes: Sizes) -> Ways:
    """Codes of each frame and codebook, shape (batch, codebooks, frames)."""
    return (integers(sizes.batch, sizes.of("audio", "num_quantizers", "n_codebooks") or 8, round(sizes.seconds * 50)),)
