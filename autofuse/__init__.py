"""autofuse: finds the fastest way to run an ONNX model by searching over kernel fusions and tile sizes."""

__version__ = "0.1.0"
