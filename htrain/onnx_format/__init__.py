"""Nets as ONNX files, and back: the only door to the file format."""
