"""autofuse: finds the fastest way to run an ONNX model by searching over kernel fusions and tile sizes."""

from autofuse.version import __version__ as __version__
