"""Predicted against measured; all errors in percent.

``evaluate_kernels(path, predictor)``: kernels by GPU, operator and dtype; ``compare_kernels(frame, gpu, predictor)``:
kernel by kernel. ``evaluate_models(path, configs, predictor)``: whole models row by row. ``evaluate_serving(path,
predictor)``: served language models cell by cell; ``evaluate_steps(path, predictor)``: image models and training steps
of public benchmarks; ``evaluate_programs(path, predictor)``: exported programs, eager and compiled;
``evaluate_training(path, predictor)``: training on many GPUs;
``evaluate_memory(path)``: memory of training runs. All of them make a ``Scored`` of their rows.
``gate`` holds the predictor that ships against what it said before.
"""

from neusight.evaluation.kernels import compare_kernels, evaluate_kernels
from neusight.evaluation.memory import evaluate_memory
from neusight.evaluation.models import evaluate_models
from neusight.evaluation.programs import evaluate_programs
from neusight.evaluation.serving import evaluate_serving
from neusight.evaluation.steps import evaluate_steps
from neusight.evaluation.training import evaluate_training
from neusight.measured.score import Scored, Selection

__all__ = [
    "Scored",
    "Selection",
    "compare_kernels",
    "evaluate_kernels",
    "evaluate_memory",
    "evaluate_models",
    "evaluate_programs",
    "evaluate_serving",
    "evaluate_steps",
    "evaluate_training",
]
