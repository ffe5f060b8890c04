"""Files of graphs: ONNX, and programs of torch.export."""

import sys
from importlib.util import find_spec

import pytest
import torch
from torch import nn

from neusight.errors import CoverageError, ModelError
from neusight.kernels import KernelBatch
from neusight.kernels.work import work_of
from neusight.steps.questions import Setting, step_request, workload_of
from neusight.workloads import load_workload
from neusight.workloads.target import TargetDevice
from tests.workloads.tflite_files import small_classifier

with_onnx = pytest.mark.skipif(find_spec("onnx") is None, reason="needs the extra onnx")


class Attends(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.attention = nn.Embedding(50, 16), nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, ids, *, bias):
        x = self.table(ids) + bias
        return self.attention(x, x, x, need_weights=False)[0]


def saved(folder, module, given, **how):
    file = folder / "model.pt2"
    torch.export.save(torch.export.export(module.eval(), given, **how), file)
    return str(file)


@pytest.fixture
def convolutions(tmp_path):
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10))
    batch = ({0: torch.export.Dim("batch")},)
    return saved(tmp_path, module, (torch.zeros(2, 3, 8, 8),), dynamic_shapes=batch)


def test_a_program_runs_the_operators_of_its_module(convolutions):
    step = load_workload(convolutions, batch=5, cache=False)
    assert step.inputs == ("input=5x3x8x8:float32",)
    assert step.parameters == (3 * 9 + 1) * 8 + 16 + (8 * 36 + 1) * 10
    conv, linear = (next(k for n in step.nodes for k in n.kernels if k.family == f) for f in ("conv2d", "gemm"))
    assert (conv.batch, linear.m) == (5, 5)


def test_a_program_takes_the_dtype_that_is_asked_for_and_the_form_of_attention(tmp_path):
    file = saved(tmp_path, Attends(), (torch.zeros(2, 7, dtype=torch.long),), kwargs={"bias": torch.zeros(16)})
    step = load_workload(file, dtype="bfloat16", attention="flash", cache=False)
    assert step.inputs == ("ids=2x7:int64", "bias=16:bfloat16")
    assert {k.family for n in step.nodes for k in n.kernels} >= {"attention", "gemm"}


def test_a_program_does_not_train_nor_change_its_size(convolutions, tmp_path):
    with pytest.raises(ModelError, match="for inference: leave out --mode training"):
        load_workload(convolutions, mode="training", cache=False)
    (tmp_path / "fixed").mkdir()
    fixed = saved(tmp_path / "fixed", nn.Linear(4, 4), (torch.zeros(3, 4),))
    with pytest.raises(ModelError, match="made for 3 samples: leave out --batch"):
        load_workload(fixed, batch=8, cache=False)
    assert load_workload(fixed, cache=False).request.batch == 3


@pytest.mark.parametrize("suffix", ["pt2", pytest.param("onnx", marks=with_onnx)])
def test_a_file_of_something_else_is_refused(tmp_path, suffix):
    file = tmp_path / f"model.{suffix}"
    with pytest.raises(ModelError, match=r"cannot read .*check the path"):
        load_workload(str(file), cache=False)
    file.write_bytes(b"something else")
    with pytest.raises(ModelError, match=f"model.{suffix} is no .*write it again"):
        load_workload(str(file), cache=False)


@with_onnx
def test_a_graph_without_operators_is_refused(tmp_path):
    file = tmp_path / "model.onnx"
    file.touch()
    with pytest.raises(ModelError, match=r"model\.onnx holds no operators: write it again"):
        load_workload(str(file), cache=False)


def test_onnx_that_is_not_installed_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    file = tmp_path / "model.onnx"
    file.touch()
    with pytest.raises(ModelError, match=r"pip install 'neusight\[onnx\]'"):
        load_workload(str(file), cache=False)


def graph(folder, nodes, given, weights=(), opset=21):
    """A file with an output ``y``; ``given`` and ``weights`` are (name, dtype, shape) and (name, array)."""
    from onnx import TensorProto, helper, numpy_helper, save

    kinds = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64, "bool": TensorProto.BOOL}
    inputs = [helper.make_tensor_value_info(name, kinds[dtype], shape) for name, dtype, shape in given]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    made = [helper.make_node(*node[:1], node[1], node[2], **(node[3] if len(node) > 3 else {})) for node in nodes]
    tensors = [numpy_helper.from_array(array, name) for name, array in weights]
    model = helper.make_model(
        helper.make_graph(made, "g", inputs, outputs, tensors), opset_imports=[helper.make_opsetid("", opset)]
    )
    file = folder / "model.onnx"
    save(model, str(file))
    return str(file)


@with_onnx
def test_an_open_extent_is_the_batch_and_shapes_are_followed_on_the_host(tmp_path):
    import numpy as np

    nodes = [
        ("Conv", ["x", "w"], ["c"], {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
        ("Shape", ["c"], ["s"], {"start": 0, "end": 1}),
        ("Concat", ["s", "rest"], ["shape"], {"axis": 0}),
        ("Reshape", ["c", "shape"], ["r"]),
        ("Gemm", ["r", "v"], ["y"], {"transB": 1}),
    ]
    weights = [
        ("w", np.zeros((4, 3, 3, 3), np.float32)), ("v", np.zeros((7, 4 * 16), np.float32)), ("rest", np.array([-1])),
    ]  # fmt: skip
    step = load_workload(graph(tmp_path, nodes, [("x", "float32", ["n", 3, 8, 8])], weights), batch=6, cache=False)
    assert step.inputs == ("x=6x3x8x8:float32",)
    assert step.parameters == 4 * 27 + 7 * 64
    assert not step.warnings
    kernels = [k for n in step.nodes for k in n.kernels]
    assert [k.family for k in kernels] == ["conv2d", "gemm"]
    assert (kernels[1].m, kernels[1].n, kernels[1].k) == (6, 7, 64)


@with_onnx
def test_what_follows_from_constants_runs_no_kernel(tmp_path):
    import numpy as np

    nodes = [("Transpose", ["w"], ["t"]), ("Mul", ["t", "half"], ["u"]), ("MatMul", ["x", "u"], ["y"])]
    weights = [("w", np.zeros((5, 8), np.float32)), ("half", np.array(0.5, np.float32))]
    step = load_workload(graph(tmp_path, nodes, [("x", "float32", [2, 8])], weights), cache=False)
    assert [k.family for n in step.nodes for k in n.kernels] == ["gemm"]


@with_onnx
def test_extents_that_nothing_tells_are_asked_for(tmp_path):
    given = [("x", "float32", ["n", "a", "b"])]
    file = graph(tmp_path, [("Relu", ["x"], ["y"])], given)
    with pytest.raises(ModelError, match=r"is 2x[?]x[?]: write it out, as --input x=SHAPE:float32"):
        load_workload(file, batch=2, cache=False)
    step = load_workload(file, batch=2, given=("x=2x3x4",), cache=False)
    assert step.inputs == ("x=2x3x4:float32",)


@with_onnx
def test_operators_without_a_form_are_named_at_once(tmp_path):
    file = graph(tmp_path, [("Hardmax", ["x"], ["z"]), ("Bernoulli", ["z"], ["y"])], [("x", "float32", [2, 3])])
    with pytest.raises(CoverageError, match=r"operators Bernoulli, Hardmax.*package.module:function"):
        load_workload(file, cache=False)


# Shapes of results, by hand from the operators' definitions.
BOTH_WAYS = {"hidden_size": 4, "direction": "bidirectional"}
FORMS = [
    ("MaxPool", [(2, 3, 9, 9)], {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [0, 0, 1, 1]}, (2, 3, 4, 4)),
    ("AveragePool", [(2, 3, 8)], {"kernel_shape": [2], "auto_pad": "SAME_UPPER", "count_include_pad": 1}, (2, 3, 8)),
    ("ConvTranspose", [(1, 4, 5, 5), (4, 2, 3, 3)], {"strides": [2, 2], "output_padding": [1, 1]}, (1, 2, 12, 12)),
    ("Conv", [(1, 4, 8), (6, 2, 3)], {"group": 2, "dilations": [2]}, (1, 6, 4)),
    ("ReduceMean", [(2, 3, 4)], {"axes": [1], "keepdims": 0}, (2, 4)),
    ("GlobalAveragePool", [(2, 3, 4, 5)], {}, (2, 3, 1, 1)),
    ("LayerNormalization", [(2, 3, 4), (4,), (4,)], {}, (2, 3, 4)),
    ("GroupNormalization", [(2, 6, 4), (6,), (6,)], {"num_groups": 3}, (2, 6, 4)),
    (
        "LSTM",
        [(5, 2, 3), (2, 16, 3), (2, 16, 4), (2, 32)],
        {"hidden_size": 4, "direction": "bidirectional"},
        (5, 2, 2, 4),
    ),
    ("GRU", [(5, 2, 3), (1, 12, 3), (1, 12, 4)], {"hidden_size": 4}, (5, 1, 2, 4)),
    ("DepthToSpace", [(1, 8, 3, 3)], {"blocksize": 2, "mode": "CRD"}, (1, 2, 6, 6)),
    ("Einsum", [(2, 3), (3, 5)], {"equation": "ij,jk->ki"}, (5, 2)),
    ("Softmax", [(2, 3, 4)], {"axis": 1}, (2, 3, 4)),
    ("Transpose", [(2, 3, 4)], {"perm": [2, 0, 1]}, (4, 2, 3)),
    ("Flatten", [(2, 3, 4)], {"axis": 2}, (6, 4)),
    ("PRelu", [(2, 3, 4), (3, 1)], {}, (2, 3, 4)),
]


@with_onnx
@pytest.mark.parametrize(("operator", "shapes", "attributes", "result"), FORMS, ids=[form[0] for form in FORMS])
def test_results_have_the_shapes_of_the_operator_s_definition(tmp_path, operator, shapes, attributes, result):
    """As ONNX's own reference computes them, and as they are by hand."""
    import numpy as np
    import onnx
    from onnx.reference import ReferenceEvaluator

    from neusight.workloads.onnx.graph import OnnxModule

    opset = 13 if operator == "ReduceMean" else 21  # whose axes were an attribute
    names = [f"x{place}" for place in range(len(shapes))]
    given = [(name, "float32", shape) for name, shape in zip(names, shapes, strict=True)]
    model = onnx.load(graph(tmp_path, [(operator, names, ["y"], attributes)], given, opset=opset))
    random = np.random.default_rng(1)
    values = {name: random.random(shape, np.float32) for name, shape in zip(names, shapes, strict=True)}
    output = OnnxModule(model, tmp_path)(**{name: torch.from_numpy(value) for name, value in values.items()})[0]
    assert tuple(output.shape) == result
    if operator not in ("LSTM", "GRU"):  # whose gates lie in another order
        assert output.detach().numpy() == pytest.approx(ReferenceEvaluator(model).run(None, values)[0], abs=1e-4)


@pytest.fixture
def tflite_file(tmp_path):
    pytest.importorskip("tflite", reason="needs the extra tflite")
    file = tmp_path / "model.tflite"
    file.write_bytes(small_classifier())
    return str(file)


def test_a_tflite_graph_runs_its_layers_in_the_integers_of_its_file(tflite_file):
    request, defaults = step_request(tflite_file, {})
    assert request.dtype == defaults["dtype"].value == "int8"
    step = workload_of(tflite_file, request, Setting(cache=False), TargetDevice())
    kernels = [kernel for node in step.nodes for kernel in node.kernels]
    macs = [int(work_of(KernelBatch.of([k])).flops[0]) // 2 for k in kernels if k.family in ("conv2d", "gemm")]
    # Outputs times taps of each; activations and biases are part of them.
    assert macs == [4 * 4 * 4 * 27, 4 * 4 * 4 * 9, 5 * 4]
    assert [k.family for k in kernels] == ["conv2d", "conv2d", "elementwise", "gemm", "row_reduction"]
    assert {k.dtype for k in kernels} == {"int8"}
    assert step.memory.weights == 4 * 27 + 4 * 9 + 5 * 4 + 4 * (4 + 4 + 5)
    # The image and what the first convolution makes of it; later layers have both in less.
    assert step.memory.temporary == 8 * 8 * 3 + 4 * 4 * 4
    assert step.inputs == ("image=1x8x8x3:int8",)


def test_a_tflite_file_of_something_else_is_refused(tmp_path):
    pytest.importorskip("tflite", reason="needs the extra tflite")
    file = tmp_path / "model.tflite"
    file.write_bytes(b"something else")
    with pytest.raises(ModelError, match=r"model\.tflite is no graph of TensorFlow Lite: write it"):
        load_workload(str(file), cache=False)
