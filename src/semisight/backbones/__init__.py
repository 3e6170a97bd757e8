"""Pretrained networks: images in, feature maps out (DESIGN: photographs).

A backbone is a fixed map from image to feature map. It comes from a package with weights inside, an ONNX file, a
`torch.nn.Module`, or a folder of Hugging Face's `transformers`; `resolve` makes one of any of them. It runs in
onnxruntime where that works. Nothing is downloaded unless it is named as `hf:...`.
"""

from semisight.backbones.resolving import DEFAULT, Installed, installed, milliseconds, resolve
from semisight.data.preprocessing import Backbone, Preprocessing

__all__ = ["DEFAULT", "Backbone", "Installed", "Preprocessing", "installed", "milliseconds", "resolve"]
