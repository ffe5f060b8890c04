"""Inputs of few models: states that were computed before, latents, trajectories, bytes."""

from __future__ import annotations

from neusight.workloads.inputs.images import flat_patches
from neusight.workloads.inputs.layouts import Ways, floats, integers, layout
from neusight.workloads.inputs.sizes import Sizes


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
