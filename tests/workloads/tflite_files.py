"""A small graph of TensorFlow Lite, written as a converter writes it: integers of 8 bits, biases of 32."""

import numpy as np


def small_classifier() -> bytes:
    """An image of 8x8x3 through a convolution of stride 2, a depthwise one, a pool, a dense layer and a softmax."""
    import flatbuffers
    import tflite

    b = flatbuffers.Builder(1024)
    int8, int32 = tflite.TensorType.INT8, tflite.TensorType.INT32

    def vector(start, values, prepend):
        start(b, len(values))
        for value in reversed(values):
            prepend(value)
        return b.EndVector()

    def buffer(nbytes):
        data = b.CreateByteVector(bytes(nbytes)) if nbytes else None
        tflite.BufferStart(b)
        if data is not None:
            tflite.BufferAddData(b, data)
        return tflite.BufferEnd(b)

    def tensor(name, shape, kind, at):
        text = b.CreateString(name)
        extents = vector(tflite.TensorStartShapeVector, shape, b.PrependInt32)
        tflite.TensorStart(b)
        tflite.TensorAddShape(b, extents)
        tflite.TensorAddType(b, kind)
        tflite.TensorAddBuffer(b, at)
        tflite.TensorAddName(b, text)
        return tflite.TensorEnd(b)

    def operator(code, reads, made, options, kind):
        inputs = vector(tflite.OperatorStartInputsVector, reads, b.PrependInt32)
        outputs = vector(tflite.OperatorStartOutputsVector, [made], b.PrependInt32)
        tflite.OperatorStart(b)
        tflite.OperatorAddOpcodeIndex(b, code)
        tflite.OperatorAddInputs(b, inputs)
        tflite.OperatorAddOutputs(b, outputs)
        tflite.OperatorAddBuiltinOptionsType(b, kind)
        tflite.OperatorAddBuiltinOptions(b, options)
        return tflite.OperatorEnd(b)

    def options(name, **fields):
        getattr(tflite, f"{name}Start")(b)
        for field, value in fields.items():
            getattr(tflite, f"{name}Add{field}")(b, value)
        return getattr(tflite, f"{name}End")(b), getattr(tflite.BuiltinOptions, name)

    tensors = [
        ("image", [1, 8, 8, 3], int8), ("w0", [4, 3, 3, 3], int8), ("b0", [4], int32), ("conv", [1, 4, 4, 4], int8),
        ("w1", [1, 3, 3, 4], int8), ("b1", [4], int32), ("depthwise", [1, 4, 4, 4], int8),
        ("pool", [1, 1, 1, 4], int8), ("w2", [5, 4], int8), ("b2", [5], int32), ("dense", [1, 5], int8),
        ("probabilities", [1, 5], int8),
    ]  # fmt: skip
    constant = [name[0] in "wb" for name, _, _ in tensors]
    sizes = [int(np.prod(s)) * (4 if k == int32 else 1) * c for (_, s, k), c in zip(tensors, constant, strict=True)]
    relu = tflite.ActivationFunctionType.RELU
    steps = {
        "Padding": tflite.Padding.SAME,
        "FusedActivationFunction": relu,
        "DilationWFactor": 1,
        "DilationHFactor": 1,
    }
    layers = [
        (0, [0, 1, 2], 3, options("Conv2DOptions", StrideW=2, StrideH=2, **steps)),
        (1, [3, 4, 5], 6, options("DepthwiseConv2DOptions", StrideW=1, StrideH=1, DepthMultiplier=1, **steps)),
        (2, [6], 7, options("Pool2DOptions", Padding=1, StrideW=4, StrideH=4, FilterWidth=4, FilterHeight=4)),
        (3, [7, 8, 9], 10, options("FullyConnectedOptions")),
        (4, [10], 11, options("SoftmaxOptions", Beta=1.0)),
    ]
    operators = [operator(code, reads, made, *how) for code, reads, made, how in layers]
    made = [tensor(name, shape, kind, at) for at, (name, shape, kind) in enumerate(tensors)]
    parts = {
        "Tensors": vector(tflite.SubGraphStartTensorsVector, made, b.PrependUOffsetTRelative),
        "Inputs": vector(tflite.SubGraphStartInputsVector, [0], b.PrependInt32),
        "Outputs": vector(tflite.SubGraphStartOutputsVector, [11], b.PrependInt32),
        "Operators": vector(tflite.SubGraphStartOperatorsVector, operators, b.PrependUOffsetTRelative),
    }
    graph, _ = _table(tflite, b, "SubGraph", parts)
    codes = []
    for name in ("CONV_2D", "DEPTHWISE_CONV_2D", "AVERAGE_POOL_2D", "FULLY_CONNECTED", "SOFTMAX"):
        number = getattr(tflite.BuiltinOperator, name)
        codes.append(_table(tflite, b, "OperatorCode", {"DeprecatedBuiltinCode": number, "BuiltinCode": number})[0])
    buffers = [buffer(size) for size in sizes]
    model, _ = _table(tflite, b, "Model", {
        "OperatorCodes": vector(tflite.ModelStartOperatorCodesVector, codes, b.PrependUOffsetTRelative),
        "Subgraphs": vector(tflite.ModelStartSubgraphsVector, [graph], b.PrependUOffsetTRelative),
        "Buffers": vector(tflite.ModelStartBuffersVector, buffers, b.PrependUOffsetTRelative),
        "Version": 3,
    })  # fmt: skip
    b.Finish(model, b"TFL3")
    return bytes(b.Output())


def _table(tflite, b, name, fields):
    getattr(tflite, f"{name}Start")(b)
    for field, value in fields.items():
        getattr(tflite, f"{name}Add{field}")(b, value)
    return getattr(tflite, f"{name}End")(b), name
