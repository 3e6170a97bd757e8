"""Read by schemathesis: to OpenAPI a file is any bytes, but one that is meant to be accepted has to be an image."""

import io

import schemathesis
from hypothesis import strategies as st
from PIL import Image


def _image(kind: str) -> bytes:
    stream = io.BytesIO()
    Image.new("L", (9, 7), 100).save(stream, kind)
    return stream.getvalue()


schemathesis.openapi.format("binary", st.sampled_from([_image("PNG"), _image("JPEG")]))
