"""Tokens and states of them: of one side or two, with the places of words on a page; latents, trajectories, bytes."""

from __future__ import annotations

from neusight.workloads.inputs.images import flat_patches, merged_patches
from neusight.workloads.inputs.sizes import Layouts, Sizes, Ways, floats, integers
from neusight.workloads.tensors import Known


def tokens(sizes: Sizes) -> Ways:
    """Shape (batch, sequence); models of several codebooks have those last, or first."""
    books = sizes.of("text", "num_codebooks", "num_channels_codebook", "num_vq") or 1
    single, stacked = integers(sizes.batch, sizes.seq_len), integers(sizes.batch, sizes.seq_len, books)
    flat, first = integers(sizes.batch * books, sizes.seq_len), integers(sizes.batch, books, sizes.seq_len)
    with_text = integers(sizes.batch, sizes.seq_len, books + 1)
    return (single,) if books == 1 else (single, stacked, flat, first, with_text)


def query_text(sizes: Sizes) -> Ways:
    """The text once more, for the smaller model that asks the image, which has a limit of its own."""
    limit = getattr(getattr(sizes.config, "qformer_config", None), "max_position_embeddings", None)
    return (integers(sizes.batch, min(sizes.seq_len, limit or sizes.seq_len)),)


def image_places(sizes: Sizes) -> Ways:
    """Which tokens an image takes the place of, the first, shape (batch, sequence)."""
    images = min(sizes.of("whole", "latent_query_num") or 1, sizes.seq_len)
    return (Known([[1] * images + [0] * (sizes.seq_len - images)] * sizes.batch),)


def target(sizes: Sizes) -> Ways:
    """Target as long as the source; with several codebooks a sample has one row each."""
    channels = getattr(getattr(sizes.config, "decoder_config", None), "num_channels", None)
    books = channels or sizes.of("decoder", "num_codebooks", "decoder_num_codebooks") or 1
    single = integers(sizes.batch, sizes.seq_len)
    more = (integers(sizes.batch * books, sizes.seq_len), integers(sizes.batch, sizes.seq_len, books))
    return (single,) if books == 1 else (*more, single)


def positions(sizes: Sizes) -> Ways:
    """Places in time, height and width of each token, which follow from the grids of images, (3, batch, sequence)."""
    if "image_grid_thw" not in sizes.parameters:
        return (None,)
    return integers(3, sizes.batch, sizes.seq_len), None


def modalities(sizes: Sizes) -> Ways:
    """Which tokens stand for images (1), first of all, and which for text (0), shape (batch, sequence)."""
    images = min(merged_patches(sizes), sizes.seq_len)
    return (Known([[1] * images + [0] * (sizes.seq_len - images)] * sizes.batch),)


def _width(sizes: Sizes) -> int:
    names = ("hidden_size", "d_model", "embed_dim", "n_embd", "dim", "embedding_size", "hidden_dim")
    return int(sizes.of("text", *names) or 768)


def source(sizes: Sizes) -> Ways:
    """States of an encoder that this decoder reads, shape (batch, sequence, its width)."""
    width = sizes.of("whole", "encoder_hidden_size", "cross_attention_hidden_size") or _width(sizes)
    return (floats(sizes.batch, sizes.seq_len, int(width)),)


def context(sizes: Sizes) -> Ways:
    """States of the model that a draft is for: of several of its layers, side by side, at each token so far."""
    layers = sizes.of("whole", "target_layer_ids") or (0,)
    return (floats(sizes.batch, sizes.seq_len, len(layers) * _width(sizes)),)


def states(sizes: Sizes) -> Ways:
    """Shape (batch, sequence, width), or with the width before it; patches where there is a grid of them."""
    if "grid_thw" in sizes.parameters:
        return (flat_patches(sizes),)
    batch, length, width = sizes.batch, sizes.seq_len, _width(sizes)
    return floats(batch, length, width), floats(batch, width, length), floats(length, width)


def latents(sizes: Sizes) -> Ways:
    """Compressed sound, shape (batch, width, time), or with time before width."""
    width, length = _width(sizes), round(sizes.seconds * 25)
    return floats(sizes.batch, width, length), floats(sizes.batch, length, width)


def _steps(sizes: Sizes) -> int:
    """A third of the tokens: a step is a return, a state and an action."""
    return max(sizes.seq_len // 3, 1)


LAYOUTS: Layouts = {
    ("input_ids", "classes_input_ids", "tasks_input_ids", "text_input_ids", "question_type_ids"): tokens,
    ("qformer_input_ids",): query_text,
    ("image_embeds_position_mask",): image_places,
    ("decoder_input_ids",): target,
    # Shape (batch, sequence), of ones.
    ("classes_attention_mask", "tasks_attention_mask", "marks"): lambda s: (integers(s.batch, s.seq_len),),
    # Corners of each token's box on its page, shape (batch, sequence, 4); BROS has eight numbers a box.
    ("bbox",): lambda s: (integers(s.batch, s.seq_len, 4), integers(s.batch, s.seq_len, 8)),
    ("position_ids",): positions,
    ("mm_token_type_ids",): modalities,
    # Classes of each sample, shape (batch,).
    ("classes_structure", "num_options"): lambda s: (integers(s.batch),),
    # Tags from the root of a page to a token, shape (batch, sequence, depth).
    ("xpath_tags_seq", "xpath_subs_seq"): lambda s: (integers(s.batch, s.seq_len, s.of("text", "max_depth") or 50),),
    ("encoder_hidden_states",): source,
    # The tokens of a draft that are found at once, shape (batch, block, width).
    ("noise_embeds",): lambda s: (floats(s.batch, s.of("whole", "block_size") or s.seq_len, _width(s)),),
    ("context_hidden_states",): context,
    ("hidden_states", "inputs_embeds", "query_embeds", "embeddings", "audio_embeds"): states,
    # What Perceiver reads: tokens, else an array of its width.
    ("inputs",): lambda s: (integers(s.batch, s.seq_len), floats(s.batch, s.seq_len, s.of("text", "d_model") or 768)),
    ("latents",): latents,
    # States of a trajectory, shape (batch, steps, width).
    ("states",): lambda s: (floats(s.batch, _steps(s), s.of("whole", "state_dim") or 17),),
    # Actions of a trajectory.
    ("actions",): lambda s: (floats(s.batch, _steps(s), s.of("whole", "act_dim", "max_action_dim") or 4),),
    # A number a step.
    ("rewards", "returns_to_go"): lambda s: (floats(s.batch, _steps(s), 1),),
    # Which step each is.
    ("timesteps",): lambda s: (integers(s.batch, _steps(s)),),
    # Joints of a robot, shape (batch, width).
    ("state",): lambda s: (floats(s.batch, s.of("whole", "max_state_dim") or 32),),
}
"""Makers by the names of inputs."""
