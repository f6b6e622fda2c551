"""A trained model for others to use: as PyTorch's weights, as an ONNX model, or as tables."""
