"""Tokens and states of them: of one side or two, with the places of words on a page; latents, trajectories, bytes."""

from __future__ import annotations

from neusight.workloads.inputs.images import flat_patches, merged_patches
from neusight.workloads.inputs.sizes import Sizes, Ways, floats, integers, layout
from neusight.workloads.tensors import Known


@layout("input_ids", "classes_input_ids", "tasks_input_ids", "text_input_ids", "question_type_ids")
def tokens(sizes: Sizes) -> Ways:
    """Shape (batch, sequence); models of several codebooks have those last, or first."""
    books = sizes.of("text", "num_codebooks", "num_channels_codebook", "num_vq") or 1
    single, stacked = integers(sizes.batch, sizes.seq_len), integers(sizes.batch, sizes.seq_len, books)
    flat, first = integers(sizes.batch * books, sizes.seq_len), integers(sizes.batch, books, sizes.seq_len)
    with_text = integers(sizes.batch, sizes.seq_len, books + 1)
    return (single,) if books == 1 else (single, stacked, flat, first, with_text)


@layout("qformer_input_ids")
def queried(sizes: Sizes) -> Ways:
    """The text once more, for the smaller model that asks the image, which has a limit of its own."""
    limit = getattr(getattr(sizes.config, "qformer_config", None), "max_position_embeddings", None)
    return (integers(sizes.batch, min(sizes.seq_len, limit or sizes.seq_len)),)


@layout("image_embeds_position_mask")
def image_places(sizes: Sizes) -> Ways:
    """Which tokens an image takes the place of, the first, shape (batch, sequence)."""
    images = min(sizes.of("whole", "latent_query_num") or 1, sizes.seq_len)
    return (Known([[1] * images + [0] * (sizes.seq_len - images)] * sizes.batch),)


@layout("decoder_input_ids")
def target(sizes: Sizes) -> Ways:
    """As long as the source; with several codebooks a sample has one row each."""
    channels = getattr(getattr(sizes.config, "decoder_config", None), "num_channels", None)
    books = channels or sizes.of("decoder", "num_codebooks", "decoder_num_codebooks") or 1
    single = integers(sizes.batch, sizes.seq_len)
    more = (integers(sizes.batch * books, sizes.seq_len), integers(sizes.batch, sizes.seq_len, books))
    return (single,) if books == 1 else (*more, single)


@layout("classes_attention_mask", "tasks_attention_mask", "marks")
def mask(sizes: Sizes) -> Ways:
    """Shape (batch, sequence), of ones."""
    return (integers(sizes.batch, sizes.seq_len),)


@layout("bbox")
def boxes(sizes: Sizes) -> Ways:
    """Corners of each token's box on its page, shape (batch, sequence, 4); BROS has eight numbers a box."""
    return integers(sizes.batch, sizes.seq_len, 4), integers(sizes.batch, sizes.seq_len, 8)


@layout("position_ids")
def positions(sizes: Sizes) -> Ways:
    """Places in time, height and width of each token, which follow from the grids of images, (3, batch, sequence)."""
    if "image_grid_thw" not in sizes.parameters:
        return (None,)
    return integers(3, sizes.batch, sizes.seq_len), None


@layout("mm_token_type_ids")
def modalities(sizes: Sizes) -> Ways:
    """Which tokens stand for images (1), first of all, and which for text (0), shape (batch, sequence)."""
    images = min(merged_patches(sizes), sizes.seq_len)
    return (Known([[1] * images + [0] * (sizes.seq_len - images)] * sizes.batch),)


@layout("classes_structure", "num_options")
def classes(sizes: Sizes) -> Ways:
    """Classes of each sample, shape (batch,)."""
    return (integers(sizes.batch),)


@layout("xpath_tags_seq", "xpath_subs_seq")
def xpath(sizes: Sizes) -> Ways:
    """Tags from the root of a page to a token, shape (batch, sequence, depth)."""
    return (integers(sizes.batch, sizes.seq_len, sizes.of("text", "max_depth") or 50),)


def _width(sizes: Sizes) -> int:
    names = ("hidden_size", "d_model", "embed_dim", "n_embd", "dim", "embedding_size", "hidden_dim")
    return int(sizes.of("text", *names) or 768)


@layout("encoder_hidden_states")
def source(sizes: Sizes) -> Ways:
    """States of an encoder that this decoder reads, shape (batch, sequence, its width)."""
    width = sizes.of("whole", "encoder_hidden_size", "cross_attention_hidden_size") or _width(sizes)
    return (floats(sizes.batch, sizes.seq_len, int(width)),)


@layout("noise_embeds")
def draft(sizes: Sizes) -> Ways:
    """The tokens of a draft that are found at once, shape (batch, block, width)."""
    return (floats(sizes.batch, sizes.of("whole", "block_size") or sizes.seq_len, _width(sizes)),)


@layout("context_hidden_states")
def context(sizes: Sizes) -> Ways:
    """States of the model that a draft is for: of several of its layers, side by side, at each token so far."""
    layers = sizes.of("whole", "target_layer_ids") or (0,)
    return (floats(sizes.batch, sizes.seq_len, len(layers) * _width(sizes)),)


@layout("hidden_states", "inputs_embeds", "query_embeds", "embeddings", "audio_embeds")
def states(sizes: Sizes) -> Ways:
    """Shape (batch, sequence, width), or with the width before it; patches where there is a grid of them."""
    if "grid_thw" in sizes.parameters:
        return (flat_patches(sizes),)
    batch, length, width = sizes.batch, sizes.seq_len, _width(sizes)
    return floats(batch, length, width), floats(batch, width, length), floats(length, width)


@layout("inputs")
def anything(sizes: Sizes) -> Ways:
    """What Perceiver reads: tokens, else an array of its width."""
    return integers(sizes.batch, sizes.seq_len), floats(sizes.batch, sizes.seq_len, sizes.of("text", "d_model") or 768)


@layout("latents")
def latents(sizes: Sizes) -> Ways:
    """Compressed sound, shape (batch, width, time), or with time before width."""
    width, length = _width(sizes), round(sizes.seconds * 25)
    return floats(sizes.batch, width, length), floats(sizes.batch, length, width)


@layout("states")
def trajectory(sizes: Sizes) -> Ways:
    """States of a trajectory, shape (batch, steps, width)."""
    return (floats(sizes.batch, _steps(sizes), sizes.of("whole", "state_dim") or 17),)


@layout("actions")
def actions(sizes: Sizes) -> Ways:
    """Actions of a trajectory."""
    return (floats(sizes.batch, _steps(sizes), sizes.of("whole", "act_dim", "max_action_dim") or 4),)


@layout("rewards", "returns_to_go")
def rewards(sizes: Sizes) -> Ways:
    """A number a step."""
    return (floats(sizes.batch, _steps(sizes), 1),)


@layout("timesteps")
def times(sizes: Sizes) -> Ways:
    """Which step each is."""
    return (integers(sizes.batch, _steps(sizes)),)


def _steps(sizes: Sizes) -> int:
    """A third of the tokens: a step is a return, a state and an action."""
    return max(sizes.seq_len // 3, 1)


@layout("state")
def robot(sizes: Sizes) -> Ways:
    """Joints of a robot, shape (batch, width)."""
    return (floats(sizes.batch, sizes.of("whole", "max_state_dim") or 32),)
