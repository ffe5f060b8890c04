"""Colours of charts: each distinguished quantity has a separate colour, the same in every chart."""

from __future__ import annotations

LIMITER = {
    "compute": "#0b5fa5",
    "dram": "#e07b00",
    "l2": "#5a9e4b",
    "power": "#8d6bb1",
    "launch": "#b5423c",
    "host": "#6b6b6b",
    "link": "#2aa6a6",
    "pipeline": "#c9a227",
}
"""Resources that limit a time: full colours."""
PHASE = {
    "forward": "#003574",
    "backward": "#6b4317",
    "weights": "#822a36",
    "recompute": "#33544f",
    "optimizer": "#574170",
    "send forward": "#232136",
    "send backward": "#681406",
    "gather forward": "#333d01",
    "gather backward": "#5b174f",
    "reduce": "#814a8d",
    "to host": "#3b0347",
    "to device": "#032d06",
    "barrier": "#421201",
    "bubble": "#dedede",
}
"""Parts of a step in their order: dark; waiting is nearly white."""
MEMORY = {
    "weights": "#57cef7",
    "gradients": "#f8ac3d",
    "optimizer": "#52db9c",
    "activations": "#f199ee",
    "temporary": "#fb836d",
    "KV cache": "#b2cb52",
    "loss": "#e7cf94",
    "communication": "#7ffcde",
    "workspaces": "#edab9e",
    "buffers": "#e4eb6c",
    "context": "#a5a9c4",
    "fragments": "#8cb88b",
    "kept free": "#bcd0ff",
    "capacity": "#000000",
}
"""Terms of memory: light; what there is of it is black."""
PART = {
    "experts": "#a88c73",
    "gate up": "#3b82af",
    "up": "#8c7a2b",
    "down": "#a26678",
    "qkv": "#458a71",
    "output": "#818fc4",
    "attention of prompts": "#656818",
    "attention of decodes": "#16716f",
    "head": "#8a533f",
    "norm": "#c78ec4",
    "add and norm": "#5db0d8",
    "activation": "#5a5e90",
    "reduce output": "#d2918c",
    "latent": "#aa6743",
    "host": LIMITER["host"],
}
"""Parts of a pass of a served model: pale; its host is the host that limits."""
GAIN = {"faster": "#00c46a", "slower": "#e0245e"}
"""What takes from a time, and what adds to it."""
COLOURS = (
    "#6348f2",
    "#28842d",
    "#d54ce3",
    "#4998fe",
    "#f84e3a",
    "#bb00a2",
    "#dd5ca5",
    "#9a77f4",
    "#9e3fe7",
    "#0a73f3",
)
"""Colours of series that are named by the question, such as devices, in their order."""
GREY = "#9a9a9a"
"""Colour of marks outside of measured ranges."""
PLAIN = "#3a3a3a"
"""Colour of marks without a series: a whole, a rest, and guides."""
