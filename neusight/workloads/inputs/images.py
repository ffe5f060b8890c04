"""Images and clips: whole, in tiles, or cut into patches with the grid that they came from."""

from __future__ import annotations

from neusight.workloads.inputs.sizes import TEXT_LINE, Layouts, Sizes, Ways, floats, integers
from neusight.workloads.tensors import Known, TensorSpec

_DEPTH = ("temporal_patch_size", "patch_temporal")
"""Images along time that a patch has."""


def pixels(sizes: Sizes) -> Ways:
    """Shape (batch, channels, height, width); or patches, or tiles of images, or frames of a clip."""
    batch, channels = sizes.batch, sizes.channels
    height, width = sizes.edges
    if {"image_grid_thw", "grid_thw", "image_grid_hw"} & sizes.parameters:
        return _ways_of_patches(sizes)
    if {"spatial_shapes", "pixel_position_ids", "image_position_ids"} & sizes.parameters:
        return _patches(sizes)
    whole = floats(batch, channels, height, width)
    clip = floats(batch, sizes.frames, channels, height, width) if _takes_clips(sizes) else None
    tiles = floats(batch, _tiles(sizes), channels, height, width)
    pairs = floats(batch, 2, channels, height, width)
    if "aspect_ratio_ids" in sizes.parameters:
        return (floats(batch, 1, sizes.of("vision", "max_num_tiles") or 1, channels, height, width),)
    large = tuple(floats(batch, channels, edge, edge) for edge in sizes.larger_edges)
    if "image_sizes" in sizes.parameters and not clip:
        return tiles, whole
    patches = () if sizes.of("vision", "patch_size") is None else _patches(sizes)
    edges = _even_edges(sizes)
    even = floats(batch, 1, channels, *edges), floats(batch, channels, *edges)
    line = floats(batch, channels, *TEXT_LINE)
    return (clip, whole, tiles) if clip else (whole, tiles, pairs, line, *large, *patches, *even)


def _tiles(sizes: Sizes) -> int:
    """Parts that an image is cut into, and the whole beside them, where a configuration lists ways to cut it."""
    pinpoints = sizes.of("whole", "image_grid_pinpoints")
    if not pinpoints:
        return 1
    from transformers.image_processing_utils import select_best_resolution

    height, width = sizes.edges
    across, down = select_best_resolution((height, width), [list(size) for size in pinpoints])
    return 1 + across * down // (height * width)


def _even_edges(sizes: Sizes) -> tuple[int, int]:
    """Height and width rounded up to whole groups of patches, of which a model makes one."""
    factor = sizes.of("whole", "scale_factor", "pixel_shuffle_factor", "num_windows")
    step = sizes.patch * (factor if isinstance(factor, int) else 1)
    height, width = (-(-edge // step) * step for edge in sizes.edges)
    return height, width


def _ways_of_patches(sizes: Sizes) -> Ways:
    """Patches with a grid: as rows, as small images, or with two images along time as Qwen2-VL has them.

    Inkling cuts images into what becomes one token, with channels last.
    """
    rows, two = flat_patches(sizes), 2 if sizes.of("vision", *_DEPTH) is None else 1
    small = floats(rows.shape[0], sizes.channels, sizes.patch, sizes.patch)
    merge, edge = _merge_size(sizes), sizes.patch * _merge_size(sizes)
    merged = (floats(rows.shape[0] // merge**2, edge, edge, sizes.channels),) if merge > 1 else ()
    return (rows, small, *merged) if two == 1 else (rows, small, floats(rows.shape[0], two * rows.shape[1]), *merged)


def fine_pixels(sizes: Sizes) -> Ways:
    """The same images for an encoder of its own, in more detail."""
    edge = getattr(getattr(sizes.config, "high_res_vision_config", None), "image_size", None) or max(sizes.edges)
    return (floats(sizes.batch, sizes.channels, edge, edge),)


def _takes_clips(sizes: Sizes) -> bool:
    return sizes.of("vision", "num_frames", "frames_per_clip", "tubelet_size") is not None


def _grid(sizes: Sizes) -> tuple[int, int, int]:
    """Rows and columns of patches, multiples of what is merged; and patches along time."""
    step = sizes.patch * _merge_size(sizes)
    height, width = (max(edge // step, 1) * step // sizes.patch for edge in sizes.edges)
    return 1, height, width


def _merge_size(sizes: Sizes) -> int:
    """Number of patches that become one, along height and width."""
    names = ("spatial_merge_size", "merge_size", "downsample_factor", "pooling_kernel_size")
    merge = sizes.of("vision", *names) or 1
    return int(merge if isinstance(merge, int) else merge[-1])


def merged_patches(sizes: Sizes) -> int:
    """Places that an image takes among the tokens of a text."""
    _, height, width = _grid(sizes)
    return height * width // _merge_size(sizes) ** 2


def flat_patches(sizes: Sizes) -> TensorSpec:
    """Patches of all images in a row, shape (patches, channels x time x patch²)."""
    _, height, width = _grid(sizes)
    depth = sizes.of("vision", *_DEPTH) or 1
    return floats(sizes.batch * height * width, sizes.channels * depth * sizes.patch**2)


def _patches(sizes: Sizes) -> Ways:
    """Shape (batch, patches, channels x patch²)."""
    _, height, width = _grid(sizes)
    return (floats(sizes.batch, height * width, sizes.channels * sizes.patch**2),)


def grid(sizes: Sizes) -> Ways:
    """Patches of each image along time, height and width, shape (images, 3); or tokens, where several become one."""
    merge, (time, height, width) = _merge_size(sizes), _grid(sizes)
    counts = [[time, height, width]] + [[time, height // merge, width // merge]] * (merge > 1)
    return tuple(Known([count] * sizes.batch) for count in counts)


def positions(sizes: Sizes) -> Ways:
    """Column and row of each patch, shape (batch, patches, 2)."""
    _, height, width = _grid(sizes)
    places = [[x, y] for y in range(height) for x in range(width)]
    return (Known([places] * sizes.batch),)


def pixel_mask(sizes: Sizes) -> Ways:
    """Which patches there are, shape (batch, patches), of ones; or which pixels."""
    if "spatial_shapes" in sizes.parameters:
        _, height, width = _grid(sizes)
        return (Known.ones(sizes.batch, height * width, dtype="int32"),)
    return None, Known.ones(sizes.batch, 1, dtype="bool"), Known.ones(sizes.batch, 1, *sizes.edges)


def placed_patches(sizes: Sizes) -> Ways:
    """Patches with row and column before their pixels, shape (batch, patches, 2 + channels x patch²)."""
    count = sizes.of("vision", "max_patches", "seq_len") or 2048
    return (floats(sizes.batch, count, 2 + sizes.channels * sizes.patch**2),)


def hidden_patches(sizes: Sizes) -> Ways:
    """Which patches of a clip are hidden, shape (batch, patches)."""
    tube = sizes.of("vision", "tubelet_size") or 1
    height, width = (edge // sizes.patch for edge in sizes.edges)
    return (Known([[i % 2 for i in range(height * width * (sizes.frames // tube))]] * sizes.batch, "bool"),)


LAYOUTS: Layouts = {
    ("pixel_values", "image", "images", "image_pixel_values"): pixels,
    ("high_res_pixel_values",): fine_pixels,
    ("image_grid_thw", "grid_thw"): grid,
    # Patches of each image along height and width, shape (images, 2).
    ("spatial_shapes", "image_grid_hws", "image_grid_hw", "target_sizes"): lambda s: (
        Known([list(_grid(s)[1:])] * s.batch),
    ),
    # Along height and width, how many patches of each image become one, shape (images,).
    ("merge_sizes",): lambda s: (Known([_merge_size(s)] * s.batch),),
    # Height and width of each image before it was cut [pixels], shape (images, 2).
    ("image_sizes", "original_sizes"): lambda s: (Known([list(s.edges)] * s.batch), None),
    ("pixel_position_ids", "image_position_ids"): positions,
    ("pixel_attention_mask",): pixel_mask,
    # Which pixels are no padding, shape (batch, height, width).
    ("pixel_mask",): lambda s: (integers(s.batch, *s.edges),),
    # Shape (batch, frames, channels, height, width).
    ("pixel_values_videos", "video_values"): lambda s: (floats(s.batch, s.frames, s.channels, *s.edges),),
    ("flattened_patches",): placed_patches,
    # Which arrangement of tiles each image has, shape (batch, images).
    ("aspect_ratio_ids",): lambda s: (integers(s.batch, 1),),
    # Which tiles each image has, shape (batch, images, tiles).
    ("aspect_ratio_mask",): lambda s: (integers(s.batch, 1, s.of("vision", "max_num_tiles") or 1),),
    # Which images each token of a text sees, shape (batch, sequence, images).
    ("image_attention_mask",): lambda s: (Known.ones(s.batch, s.seq_len, 1),),
    # Patches before the text that describes them, shape (batch, patches, channels x patch²).
    ("image_patches",): _patches,
    # An example for segmentation in context, as large as the image.
    ("prompt_pixel_values", "prompt_masks"): lambda s: (floats(s.batch, s.channels, *s.edges),),
    # One point a mask that is asked for, shape (batch, masks, points, 2) [pixels].
    ("input_points",): lambda s: (floats(s.batch, 1, 1, 2),),
    # Whether each point is inside, shape (batch, masks, points).
    ("input_labels",): lambda s: (integers(s.batch, 1, 1),),
    # Tokens of the task's name.
    ("task_inputs",): lambda s: (integers(s.batch, s.of("text", "task_seq_len", "text_encoder_context_length") or 77),),
    # A coarse map of depths; models run without one.
    ("prompt_depth",): lambda s: (None, floats(s.batch, 1, *s.edges)),
    ("bool_masked_pos",): hidden_patches,
    # Features of what a detector found, shape (batch, regions, width); 36 regions as LXMERT has.
    ("visual_feats",): lambda s: (floats(s.batch, 36, s.of("vision", "visual_feat_dim") or 2048),),
    # Boxes of those regions, shape (batch, regions, 4).
    ("visual_pos",): lambda s: (floats(s.batch, 36, s.of("vision", "visual_pos_dim") or 4),),
}
"""Makers by the names of inputs."""
