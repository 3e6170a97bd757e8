"""A folder as people have them: JPEGs of mixed sizes, a table that labels one in ten, broken files among them."""

import io
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ("ball", "stripes", "dark")


def picture(kind: int, rng: np.random.Generator, width: int, height: int) -> Image.Image:
    """A light disc, stripes, or a dark corner, on a background that varies."""
    y, x = np.mgrid[0:height, 0:width] / max(height, width)
    base = 0.35 + 0.1 * rng.random() + 0.03 * rng.standard_normal((height, width))
    if kind == 0:
        base += 0.5 * ((x - x.mean()) ** 2 + (y - y.mean()) ** 2 < (0.2 + 0.1 * rng.random()) ** 2)
    elif kind == 1:
        base += 0.35 * np.sin(2 * np.pi * (4 + rng.random()) * x + rng.random())
    else:
        base *= 1.6 - 2 * np.clip(x * y * (3 + rng.random()), 0, 1)
    tint = 0.8 + 0.4 * rng.random(3)
    return Image.fromarray((255 * np.clip(base[..., None] * tint, 0, 1)).astype(np.uint8))


def write_photos(folder: Path, n: int = 120, labelled: int = 10, seed: int = 0) -> Path:
    """n JPEGs, three corrupt files and a text file below `folder`; gives the table that labels one in `labelled`."""
    rng = np.random.default_rng(seed)
    rows = ["file,label"]
    for i in range(n):
        kind = i % len(CLASSES)
        width, height = rng.integers(32, 90, 2).tolist()
        name = f"{'holiday' if i % 2 else 'home'}/{i:04d}.jpg"
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(kind, rng, width, height).save(path, quality=85)
        if i // len(CLASSES) % labelled == 0:
            rows.append(f"{name},{CLASSES[kind]}")
    whole = io.BytesIO()
    picture(0, rng, 80, 80).save(whole, "JPEG")
    (folder / "home" / "broken-half.jpg").write_bytes(whole.getvalue()[: len(whole.getvalue()) // 2])
    (folder / "home" / "broken-noise.jpg").write_bytes(rng.integers(0, 256, 500, dtype=np.uint8).tobytes())
    (folder / "holiday" / "broken-empty.jpg").write_bytes(b"")
    (folder / "notes.txt").write_text("buy milk\n")
    table = folder.parent / "labels.csv"
    table.write_text("\n".join(rows) + "\n")
    return table
