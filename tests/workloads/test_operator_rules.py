"""One rule an operator: shapes, layouts and bytes follow from the arguments alone."""

from __future__ import annotations

from itertools import product

import pytest

from neusight.errors import CoverageError
from neusight.kernels import Elementwise, Gemm, Kernel, Memory
from neusight.workloads.rules import fallback, kernels_of, rule
from neusight.workloads.rules.registry import _RULES
from neusight.workloads.tensors import Call, TensorSpec


def call(name: str, *args: object, out: object = (), overload: str = "default", **kwargs: object) -> Call:
    outputs = out if isinstance(out, tuple) else (out,)
    return Call(name, overload, args, kwargs, outputs)


def only(kernels: tuple[Kernel, ...]) -> Kernel:
    (kernel,) = kernels
    return kernel


def test_an_unknown_dtype_has_no_size() -> None:
    sizes = {"float8_e5m2fnuz": 1, "int16": 2, "uint32": 4, "uint64": 8, "complex64": 8, "complex128": 16}
    assert {dtype: TensorSpec((1,), dtype).nbytes for dtype in sizes} == sizes
    with pytest.raises(CoverageError, match="unknown dtype 'float7'; did you mean float8"):
        _ = TensorSpec((4,), "float7").nbytes


def test_second_registration_of_an_operator_raises_and_names_it() -> None:
    with pytest.raises(ValueError, match="'addmm' has a rule already"):
        rule("addmm")(lambda call: ())


def test_every_rule_is_for_an_operator_that_exists() -> None:
    import torch

    # Composite operators that decompose before they dispatch still count: they exist, under that name.
    missing = [name for name in _RULES if "::" not in name and not hasattr(torch.ops.aten, name)]
    assert not missing


def test_unknown_operator_raises_with_its_name_and_the_nearest_one() -> None:
    with pytest.raises(CoverageError, match=r"aten\.adddmm.*did you mean addmm.*--allow-fallback"):
        kernels_of(call("adddmm"))


def test_fallback_is_one_pass_over_arguments_and_results() -> None:
    x, y = TensorSpec((8, 4)), TensorSpec((8, 4))
    kernel = only(fallback(call("mystery", x, out=y)))
    assert (kernel.op, kernel.read_bytes, kernel.write_bytes) == ("fallback", 128, 128)


def test_fallback_of_a_matrix_function_does_an_elimination() -> None:
    x = TensorSpec((2, 8, 4))
    assert only(fallback(call("linalg_mystery", x, out=TensorSpec((2,))))).flops == 2 * 8 * 4 * 4
    assert only(fallback(call("mystery", x, out=TensorSpec((2,))))).flops == 2


def test_transposed_operands_are_layouts_not_copies(subtests: pytest.Subtests) -> None:
    for a_strides, b_strides, layout in [
        ((7, 1), (1, 7), "tn"),
        ((7, 1), (5, 1), "nn"),
        ((1, 3), (5, 1), "nt"),
        ((1, 3), (1, 7), "tt"),
    ]:
        with subtests.test(a_strides=a_strides, b_strides=b_strides, layout=layout):
            a, b = TensorSpec((3, 7), "float32", a_strides), TensorSpec((7, 5), "float32", b_strides)
            assert kernels_of(call("mm", a, b, out=TensorSpec((3, 5)))) == (Gemm(m=3, n=5, k=7, layout=layout),)


def test_operand_that_is_dense_in_neither_dimension_is_copied_first() -> None:
    a = TensorSpec((3, 7), "float32", (28, 4))
    copy, gemm = kernels_of(call("mm", a, TensorSpec((7, 5)), out=TensorSpec((3, 5))))
    assert isinstance(copy, Memory) and copy.elements == 21
    assert gemm == Gemm(m=3, n=5, k=7, layout="nn")


def test_vector_bias_is_an_epilogue_and_a_matrix_addend_is_copied() -> None:
    a, b, out = TensorSpec((3, 7)), TensorSpec((7, 5)), TensorSpec((3, 5))
    assert only(kernels_of(call("addmm", TensorSpec((5,)), a, b, out=out))).bias
    copy, gemm = kernels_of(call("addmm", TensorSpec((3, 5)), a, b, out=out))
    assert copy.op == "copy" and not gemm.bias


def test_heads_split_by_views_need_no_copy_in_a_batched_product() -> None:
    # [b, s, h, d] seen as [b h, s, d] when b = 1: rows are h d apart.
    q = TensorSpec((4, 16, 8), "float32", (8, 32, 1))
    k = TensorSpec((4, 8, 16), "float32", (8, 1, 32))
    assert only(kernels_of(call("bmm", q, k, out=TensorSpec((4, 16, 16))))) == Gemm(
        op="bmm", batch=4, m=16, n=16, k=8, layout="tn"
    )


def test_broadcast_operand_counts_once_at_stored_size() -> None:
    x, bias = TensorSpec((64, 10)), TensorSpec((64, 10), "float32", (0, 1))
    kernel = only(kernels_of(call("add", x, bias, out=TensorSpec((64, 10)), overload="Tensor")))
    assert kernel == Elementwise(op="add", elements=640, read_bytes=2560 + 40, write_bytes=2560, flops=640)


def test_in_place_reads_and_writes_its_tensor() -> None:
    x, y = TensorSpec((10,)), TensorSpec((10,))
    kernel = only(kernels_of(call("mul_", x, y, out=x, overload="Tensor")))
    assert (kernel.op, kernel.read_bytes, kernel.write_bytes) == ("mul", 80, 40)


def test_same_tensor_twice_is_read_once() -> None:
    x = TensorSpec((10,))
    assert only(kernels_of(call("mul", x, x, out=TensorSpec((10,)), overload="Tensor"))).read_bytes == 40


def test_arithmetic_with_a_number_is_named_as_measured(subtests: pytest.Subtests) -> None:
    for op, number in product(["add", "mul", "div", "pow"], [3.5, TensorSpec(())]):
        with subtests.test(op=op, number=number):
            x = TensorSpec((10,))
            assert only(kernels_of(call(op, x, number, out=TensorSpec((10,))))).op == f"{op}_scalar"
            assert only(kernels_of(call(op, x, TensorSpec((10,)), out=TensorSpec((10,))))).op == op


def test_copy_does_not_read_its_destination_and_a_cast_moves_two_widths() -> None:
    x = TensorSpec((100,))
    assert only(kernels_of(call("copy_", TensorSpec((100,)), x, out=x))).read_bytes == 400
    cast = only(kernels_of(call("_to_copy", x, out=TensorSpec((100,), "bfloat16"))))
    assert (cast.op, cast.read_bytes, cast.write_bytes) == ("copy", 400, 200)


def test_embedding_reads_rows_not_the_table() -> None:
    table, index, out = TensorSpec((50000, 16)), TensorSpec((8,), "int64"), TensorSpec((8, 16))
    assert only(kernels_of(call("embedding", table, index, out=out))).read_bytes == 8 * 8 + 8 * 16 * 4


def test_embedding_gradient_zeroes_the_table_then_adds_rows() -> None:
    grad, index, out = TensorSpec((8, 16)), TensorSpec((8,), "int64"), TensorSpec((50000, 16))
    fill, add = kernels_of(call("embedding_dense_backward", grad, index, 50000, -1, False, out=out))
    assert (fill.op, fill.write_bytes) == ("fill", 50000 * 64)
    assert (add.read_bytes, add.write_bytes) == (2 * 512 + 64, 512)


def test_views_and_allocations_run_nothing(subtests: pytest.Subtests) -> None:
    for name in ["view", "expand", "transpose", "t", "detach", "empty_like", "_unsafe_view", "split"]:
        with subtests.test(name=name):
            assert kernels_of(call(name, TensorSpec((4,)), out=TensorSpec((4,)))) == ()


def test_dropout_writes_values_and_a_byte_mask_and_reads_them_back() -> None:
    x, mask = TensorSpec((100,)), TensorSpec((100,), "bool")
    forward = only(kernels_of(call("native_dropout", x, 0.1, True, out=(TensorSpec((100,)), mask))))
    assert (forward.op, forward.read_bytes, forward.write_bytes) == ("dropout", 400, 500)
    backward = only(kernels_of(call("native_dropout_backward", x, mask, 1.1, out=TensorSpec((100,)))))
    assert (backward.op, backward.read_bytes, backward.write_bytes) == ("dropout_backward", 500, 400)


def test_softmax_rows_are_everything_but_its_dimension() -> None:
    x = TensorSpec((2, 4, 16, 32))
    kernel = only(kernels_of(call("_softmax", x, -1, False, out=TensorSpec((2, 4, 16, 32)))))
    assert (kernel.rows, kernel.cols, kernel.read_bytes) == (128, 32, x.nbytes)


def test_layer_norm_gradient_has_a_kernel_for_rows_and_one_for_columns(subtests: pytest.Subtests) -> None:
    for wanted, ops in [
        ((True, True, True), ["layer_norm_backward", "layer_norm_weight_backward"]),
        ((True, False, False), ["layer_norm_backward"]),
        ((False, True, True), ["layer_norm_weight_backward"]),
    ]:
        with subtests.test(wanted=wanted, ops=ops):
            x, statistic, weight = TensorSpec((6, 10)), TensorSpec((6, 1)), TensorSpec((10,))
            kernels = kernels_of(
                call(
                    "native_layer_norm_backward", TensorSpec((6, 10)), x, (10,), statistic, TensorSpec((6, 1)), weight,
                    TensorSpec((10,)), wanted, out=(TensorSpec((6, 10)), TensorSpec((10,)), TensorSpec((10,))),
                )
            )  # fmt: skip
            assert [k.op for k in kernels] == ops
            assert all((k.rows, k.cols) == ((10, 6) if "weight" in k.op else (6, 10)) for k in kernels)


def test_sum_over_tokens_has_one_row_a_feature() -> None:
    kernel = only(kernels_of(call("sum", TensorSpec((128, 64)), (0,), True, out=TensorSpec((1, 64)))))
    assert (kernel.rows, kernel.cols, kernel.flops) == (64, 128, 128 * 64)


def conv_call(bias: object, transposed: bool, out: TensorSpec) -> Call:
    x, weight = TensorSpec((2, 3, 32, 32)), TensorSpec((3, 8, 5, 5) if transposed else (8, 3, 5, 5))
    return call("convolution", x, weight, bias, (2, 2), (2, 2), (1, 1), transposed, (0, 0), 1, out=out)


def test_convolution_adds_its_bias_in_a_kernel_of_its_own() -> None:
    conv, add = kernels_of(conv_call(TensorSpec((8,)), False, TensorSpec((2, 8, 16, 16))))
    assert (conv.op, conv.in_channels, conv.out_channels, conv.height, conv.stride) == ("forward", 3, 8, 32, 2)
    assert (add.op, add.elements) == ("add", 2 * 8 * 16 * 16)


def test_transposed_convolution_is_the_input_gradient_of_its_mirror() -> None:
    conv = only(kernels_of(conv_call(None, True, TensorSpec((2, 8, 63, 63)))))
    # The mirror maps 8 channels of 63 x 63 to 3 channels of 32 x 32.
    assert (conv.op, conv.in_channels, conv.out_channels, conv.height) == ("input_grad", 8, 3, 63)


def test_convolution_gradient_has_a_kernel_for_each_gradient_asked_for(subtests: pytest.Subtests) -> None:
    for wanted in [(True, True, True), (False, True, False), (True, True, False)]:
        with subtests.test(wanted=wanted):
            grad, x, weight = TensorSpec((2, 8, 16, 16)), TensorSpec((2, 3, 32, 32)), TensorSpec((8, 3, 5, 5))
            sizes = ((8,), (2, 2), (2, 2), (1, 1), False, (0, 0), 1)
            kernels = kernels_of(call("convolution_backward", grad, x, weight, *sizes, wanted, out=x))
            expected = [op for op, want in zip(("input_grad", "weight_grad", "sum"), wanted, strict=True) if want]
            assert [k.op for k in kernels] == expected
            if wanted[2]:
                assert (kernels[-1].rows, kernels[-1].cols) == (8, 2 * 16 * 16)


def test_batch_norm_reduces_over_channels_in_training_and_is_pointwise_in_evaluation() -> None:
    x, c = TensorSpec((4, 8, 6, 6)), [TensorSpec((8,)) for _ in range(4)]
    training = only(kernels_of(call("native_batch_norm", x, *c, True, 0.1, 1e-5, out=TensorSpec((4, 8, 6, 6)))))
    assert (training.family, training.rows, training.cols) == ("row_reduction", 8, 4 * 36)
    evaluation = only(kernels_of(call("native_batch_norm", x, *c, False, 0.1, 1e-5, out=TensorSpec((4, 8, 6, 6)))))
    assert (evaluation.family, evaluation.read_bytes) == ("elementwise", x.nbytes + 4 * 32)


def test_pooling_visits_every_element_of_its_window(subtests: pytest.Subtests) -> None:
    for name, window, flops_each in [
        ("max_pool2d_with_indices", (3, 3), 9),
        ("avg_pool2d", (2,), 4),
        ("avg_pool3d", (3, 1, 1), 3),
        ("avg_pool2d", (1280,), 225),  # All of an image of 15 x 15.
    ]:
        with subtests.test(name=name, window=window, flops_each=flops_each):
            out = TensorSpec((2, 4, 7, 7))
            kernel = only(kernels_of(call(name, TensorSpec((2, 4, 15, 15)), window, (2, 2), out=out)))
            assert (kernel.family, kernel.flops) == ("elementwise", flops_each * out.elements)


def test_pooling_gradient_does_not_read_the_input() -> None:
    x, grad, indices = TensorSpec((2, 4, 15, 15)), TensorSpec((2, 4, 7, 7)), TensorSpec((2, 4, 7, 7), "int64")
    args = (grad, x, (3, 3), (2, 2), (0, 0), (1, 1), False, indices)
    kernel = only(kernels_of(call("max_pool2d_with_indices_backward", *args, out=x)))
    assert (kernel.op, kernel.read_bytes) == ("max_pool2d_backward", grad.nbytes + indices.nbytes)


def parameters(sizes: tuple[int, ...]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec((size,)) for size in sizes)


def test_fused_adamw_moves_28_bytes_a_float32_parameter() -> None:
    # Reads parameter, gradient, two moments; writes all but the gradient.
    sizes = (1000, 24, 7)
    lists = [parameters(sizes) for _ in range(4)]
    steps = tuple(TensorSpec(()) for _ in sizes)
    kernel = only(kernels_of(call("_fused_adamw_", *lists, (), steps, lr=1e-3, amsgrad=False)))
    assert kernel.read_bytes + kernel.write_bytes == 28 * sum(sizes)
    assert (kernel.op, kernel.elements, kernel.tensors) == ("adamw_fused", sum(sizes), 3)


def test_fused_sgd_moves_12_bytes_a_parameter_and_20_with_momentum(subtests: pytest.Subtests) -> None:
    for momentum, bytes_each in [(True, 20), (False, 12)]:
        with subtests.test(momentum=momentum, bytes_each=bytes_each):
            lists = [parameters((100,)), parameters((100,)), parameters((100,)) if momentum else ()]
            kernel = only(kernels_of(call("_fused_sgd_", *lists)))
            assert kernel.read_bytes + kernel.write_bytes == bytes_each * 100


def test_foreach_passes_over_all_tensors_in_one_kernel() -> None:
    moments, grads = parameters((100, 20)), parameters((100, 20))
    lerp = only(kernels_of(call("_foreach_lerp_", moments, grads, 0.1, overload="Scalar")))
    assert (lerp.op, lerp.elements, lerp.read_bytes, lerp.write_bytes) == ("foreach_lerp", 120, 960, 480)
    squares = parameters((100, 20))
    addcmul = only(kernels_of(call("_foreach_addcmul_", squares, grads, grads, 0.1, overload="Scalar")))
    assert addcmul.read_bytes == 960  # the gradients are both factors, and read once


def test_step_counters_of_the_foreach_form_stay_on_the_host() -> None:
    steps = (TensorSpec(()), TensorSpec(()))
    assert kernels_of(call("_foreach_add_", steps, TensorSpec(()), overload="Tensor")) == ()
    assert only(kernels_of(call("_foreach_add_", steps, 1, overload="Scalar"))).elements == 2


def test_flash_attention_keeps_its_shape_and_grouped_heads(subtests: pytest.Subtests) -> None:
    for direction in ["forward", "backward"]:
        with subtests.test(direction=direction):
            q, kv, rows = (
                TensorSpec((2, 8, 64, 32), "bfloat16"),
                TensorSpec((2, 2, 64, 32), "bfloat16"),
                TensorSpec((2, 8, 64)),
            )
            if direction == "forward":
                kernels = kernels_of(call("_scaled_dot_product_flash_attention", q, kv, kv, 0.0, True, out=q))
            else:
                args = (q, q, kv, kv, q, rows, None, None, 64, 64, 0.0, True)
                kernels = kernels_of(call("_scaled_dot_product_flash_attention_backward", *args, out=(q, kv, kv)))
            attention = kernels[-1]
            names = ("op", "batch", "heads", "kv_heads", "q_len", "head_dim")
            assert tuple(getattr(attention, name) for name in names) == (direction, 2, 8, 2, 64, 32)
            assert attention.causal and len(kernels) == (1 if direction == "forward" else 2)


def test_loss_gradient_writes_all_log_probabilities_and_loss_reads_one_each() -> None:
    logits, target = TensorSpec((32, 1000)), TensorSpec((32,), "int64")
    loss = only(kernels_of(call("nll_loss_forward", logits, target, None, 1, -100, out=TensorSpec(()))))
    assert loss.read_bytes == 32 * 8 + 32 * 4
    fill, scatter = kernels_of(
        call("nll_loss_backward", TensorSpec(()), logits, target, None, 1, -100, TensorSpec(()), out=logits)
    )
    assert (fill.write_bytes, scatter.write_bytes) == (32 * 1000 * 4, 32 * 4)


def test_a_tensor_gathered_by_itself_is_read_as_index_and_as_values() -> None:
    table = TensorSpec((4, 8), "int64")
    kernel = only(kernels_of(call("gather", table, 1, table, out=table)))
    assert isinstance(kernel, Memory)
    assert (kernel.read_bytes, kernel.write_bytes) == (2 * table.nbytes, table.nbytes)


def test_a_constant_is_copied_to_where_the_program_uses_it() -> None:
    kernel = only(kernels_of(call("lift_fresh_copy", TensorSpec(()), out=TensorSpec(()))))
    assert (kernel.op, kernel.read_bytes, kernel.write_bytes) == ("copy", 4, 4)
