"""Files of every kind that can be read, written for the tests from their published formats."""

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

IDX_TYPES = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}


def idx_bytes(array: np.ndarray) -> bytes:
    code = IDX_TYPES[array.dtype.str[1:]]
    head = bytes([0, 0, code, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.astype(array.dtype.newbyteorder(">")).tobytes()


def write_idx(path: Path, array: np.ndarray) -> Path:
    content = idx_bytes(array)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def python2_batch(data: np.ndarray, labels: list[int], labels_key: bytes = b"labels") -> bytes:
    """A batch as Python 2 pickled it (protocol 2, byte strings), opcode by opcode as in the published files."""
    n, width = data.shape
    return b"".join(
        [
            b"\x80\x02}q\x01(",
            b"U\x0bbatch_labelq\x02U\x15training batch 1 of 5q\x03",
            b"U" + bytes([len(labels_key)]) + labels_key + b"q\x04]q\x05(",
            b"".join(b"K" + bytes([label]) for label in labels),
            b"eU\x04dataq\x06cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08",
            b"K\x00\x85U\x01b\x87Rq\t(K\x01",
            b"J" + struct.pack("<i", n) + b"M" + struct.pack("<H", width) + b"\x86",
            b"cnumpy\ndtype\nq\nU\x02u1K\x00K\x01\x87Rq\x0b",
            b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89",
            b"T" + struct.pack("<i", data.size) + data.tobytes(),
            b"tbu.",
        ]
    )


def random_image(seed: int, height: int = 20, width: int = 20, channels: int = 3) -> np.ndarray:
    """Smooth enough to survive JPEG: a gradient of random slopes."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width] / max(height, width)
    planes = [random.uniform(40, 120) + random.uniform(0, 60) * x + random.uniform(0, 60) * y for _ in range(channels)]
    pixels = np.stack(planes, -1).round().astype(np.uint8)
    return pixels[..., 0] if channels == 1 else pixels


def write_image(path: Path, pixels: np.ndarray, **options: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)
    return path


def tiny_png_of(width: int, height: int) -> bytes:
    """A valid PNG of any size, a few kilobytes of compressed zeros that stand for all its rows."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return len(content).to_bytes(4, "big") + kind + content + zlib.crc32(kind + content).to_bytes(4, "big")

    head = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, 0, 0, 0, 0])
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(10**6))) + chunk(b"IEND", b"")
    )
