"""From an ONNX model to a Graph: read the file, bind the shapes, fold what is constant, simplify."""
