"""Models that something else than a Hugging Face configuration describes: a library's name, or a file of a graph."""

from neusight.workloads.sources.described import Described
from neusight.workloads.sources.named import described, described_file, traced_model

__all__ = ["Described", "described", "described_file", "traced_model"]
