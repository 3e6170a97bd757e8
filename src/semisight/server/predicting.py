"""One request for predictions: its images are read, decoded by some threads, put in the model's queue, and answered."""

import asyncio
import base64
import json
import struct
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
from fastapi import Request
from fastapi.responses import Response
from python_multipart.exceptions import FormParserError
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException

from semisight.runs.pictures import Pixels
from semisight.server.answering import Answer, Question
from semisight.server.batching import Full
from semisight.server.limits import Limits
from semisight.server.service import Service
from semisight.server.uploads import Decoder, Refused

_RAW = ("application/octet-stream", "image/")
_FORM = "multipart/form-data"
_LITTLE = 2000  # bytes
_DECODERS = 2  # threads
_as_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode  # json.dumps would make one for each answer
_NAME = 200  # letters of a file's name that are repeated in an answer


def upload_schema(limits: Limits) -> dict[str, Any]:
    """OpenAPI's description of the body."""
    image = {"type": "string", "format": "binary"}
    form = {
        "type": "object",
        "properties": {"images": {"type": "array", "items": image, "minItems": 1, "maxItems": limits.images}},
        "required": ["images"],
        "additionalProperties": False,
    }
    return {
        "requestBody": {
            "required": True,
            "content": {_FORM: {"schema": form}, "application/octet-stream": {"schema": image}},
        }
    }


class Predicting:
    """Images are unpacked by a few threads, so that the memory it takes is bounded; those that take long by one of
    their own, where they wait for each other and nobody else for them."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._quick = ThreadPoolExecutor(_DECODERS, thread_name_prefix="semisight-decode")
        self._slow = ThreadPoolExecutor(1, thread_name_prefix="semisight-slow")
        self._requests = 0  # being read or answered
        self._slow_waiting = 0

    def close(self) -> None:
        for pool in (self._quick, self._slow):
            pool.shutdown(cancel_futures=True)

    async def __call__(self, request: Request, top: int, captions: int, draw: bool, nearest: int) -> Response:
        limits = self._service.limits
        if self._requests >= limits.waiting:
            raise Full
        self._requests += 1
        try:
            named = await _read(request, limits)
            async with asyncio.timeout(limits.seconds):
                pixels, answers = await self._answers(named, top, captions, draw, nearest)
            content = self._written([name for name, _ in named], pixels, answers, draw)
            return Response(content, media_type="application/json")
        except TimeoutError:
            raise HTTPException(503, "this took too long: try again later", {"Retry-After": "5"}) from None
        finally:
            self._requests -= 1

    async def _answers(
        self, named: Sequence[tuple[str, bytes]], top: int, captions: int, draw: bool, nearest: int
    ) -> tuple[list[npt.NDArray[np.uint8]], list[Answer]]:
        service = self._service
        backbone = service.answerer.backbone
        preprocessing = None if backbone is None else backbone.preprocessing
        decode = Decoder(service.run.architecture.image_shape, service.limits, preprocessing)
        if len(named) == 1 and decode.is_quick(named[0][1]):
            pixels = [decode(named[0][1], named[0][0])]
        else:
            pixels = await self._decoded(decode, named)
        return pixels, await service.batcher.ask([Question(one, top, draw, nearest, captions) for one in pixels])

    async def _decoded(self, decode: Decoder, named: Sequence[tuple[str, bytes]]) -> list[npt.NDArray[np.uint8]]:
        loop = asyncio.get_running_loop()
        slow = [decode.is_slow(content) for _, content in named]
        if sum(slow) + self._slow_waiting > self._service.limits.slow_waiting:
            raise Full
        self._slow_waiting += sum(slow)
        waiting = [
            loop.run_in_executor(self._slow if is_slow else self._quick, decode, content, name)
            for is_slow, (name, content) in zip(slow, named, strict=True)
        ]
        try:
            return [await future for future in waiting]
        finally:
            self._slow_waiting -= sum(slow)
            for future in waiting:  # the first that cannot be read answers for all
                future.cancel()

    def _written(
        self,
        names: Sequence[str],
        pixels: Sequence[npt.NDArray[np.uint8]],
        answers: Sequence[Answer],
        draw: bool,
    ) -> bytes:
        """schemas.PredictOut as JSON, without checking what we made ourselves."""
        service = self._service
        run = service.run
        body = {
            "run": str(run.folder.path),
            "calibrated": run.has("labels") and run.labels.calibrated,
            "images": [
                {
                    "name": name,
                    "labels": [vars(guess) for guess in answer.labels],
                    "captions": [vars(sentence) for sentence in answer.captions],
                    "seen": _address(seen.transpose(1, 2, 0)) if draw else None,
                    "reconstruction": None if answer.drawing is None else _address(answer.drawing),
                    "nearest": [
                        {"file": near.file, "similarity": near.similarity, "label": service.label_of(near.file)}
                        for near in answer.nearest
                    ],
                }
                for name, seen, answer in zip(names, pixels, answers, strict=True)
            ],
        }
        return _as_json(body).encode("utf-8", "replace")


async def _read(request: Request, limits: Limits) -> list[tuple[str, bytes]]:
    """(name, bytes) of every image in the body."""
    kind = request.headers.get("content-type", "").lower()
    if kind.startswith(_RAW):
        return [("image", await request.body())]
    if not kind.startswith(_FORM):
        raise HTTPException(415, f"send a form ({_FORM}) with files called images, or the bytes of an image")
    try:
        async with request.form(max_files=limits.images, max_fields=limits.images) as form:
            files = [value for key, value in form.multi_items() if key == "images"]
            if not files or len(files) != len(form.multi_items()):
                raise Refused("the form must have one or more files called images, and nothing else")
            return [await _file(value) for value in files]
    except FormParserError as error:  # older starlette lets those of the parser through
        raise Refused(f"the form cannot be read: {error}", 400) from None
    except HTTPException as error:
        if error.status_code == 400 and "Too many" in str(error.detail):
            raise Refused(f"at most {limits.images} images at a time") from None
        raise


async def _file(value: UploadFile | str) -> tuple[str, bytes]:
    if isinstance(value, str):
        raise Refused("images must be files, not text")
    return (value.filename or "image")[:_NAME], await value.read()


def _address(pixels: Pixels) -> str:
    return "data:image/png;base64," + base64.b64encode(small_png(pixels)).decode("ascii")


def small_png(pixels: Pixels) -> bytes:
    """uint8 [H, W, 1 or 3]. Pillow takes ten times as long for small pictures, of which there are two in an answer."""
    height, width, channels = pixels.shape
    rows = np.zeros((height, 1 + width * channels), np.uint8)  # a row begins with its filter: none
    rows[:, 1:] = pixels.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2 if channels == 3 else 0, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", _packed(rows.tobytes())), (b"IEND", b""))
    chunks = (
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _packed(content: bytes) -> bytes:
    """In zlib's format; a little is left as it is, in one stored block, for packing it costs more than sending it."""
    if len(content) > _LITTLE:
        return zlib.compress(content, 1)
    size = len(content)
    return (
        b"\x78\x01\x01" + struct.pack("<HH", size, size ^ 0xFFFF) + content + struct.pack(">I", zlib.adler32(content))
    )
