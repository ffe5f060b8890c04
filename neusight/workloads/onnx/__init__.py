"""ONNX graphs as modules: weights without values, operators as functions of PyTorch, shapes followed on the host."""
