"""A step as engines launch it."""

import pytest

from neusight.requests import Request
from neusight.transforms.compiled import compiled
from neusight.workloads import load_workload


def test_a_graph_of_operators_copies_its_inputs_first_and_changes_nothing_else():
    options = {"batch": 2, "dtype": "float32"}
    eager = load_workload("alexnet", **options)
    step = compiled(load_workload("alexnet", Request.of("alexnet", launch="cudagraphs", **options)))
    first, *rest = [node for node, _ in step.expanded()]
    (image,) = [tensor for tensor in eager.tensors if tensor.kind == "input"]
    (copy,) = first.kernels
    assert (copy.op, copy.read_bytes, copy.write_bytes) == ("copy", image.nbytes, image.nbytes)
    assert [node.kernels for node in rest] == [node.kernels for node, _ in eager.expanded()]
    assert step.tensors[first.reads[0].tensor].shape == image.shape
    # What is copied is there twice while the step runs.
    assert step.memory.peak == eager.memory.peak + image.nbytes


@pytest.mark.parametrize(("launch", "copies"), [("eager", 0), ("compiled", 0), ("graph", 1)])
def test_graphs_alone_copy_inputs(launch, copies):
    step = compiled(load_workload("alexnet", Request.of("alexnet", launch=launch, batch=2, dtype="float32")))
    assert sum("copy" in node.operator for node in step.nodes) == copies
