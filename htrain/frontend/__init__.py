"""A model in, a forward net out: PyTorch modules and ONNX files."""
