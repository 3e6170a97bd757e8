"""Which symmetries are used is what the labels say, whatever the set is called."""

import torch

from semisight.data import load
from semisight.data.augment import crops, strong, warp
from semisight.data.symmetries import Symmetries, kept_symmetries, retained


def corners(n: int, both: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """A light corner: above or below is the class; with `both`, left or right is, too."""
    generator = torch.Generator().manual_seed(0)
    x = 0.2 * torch.rand(n, 1, 8, 8, generator=generator)
    below, right = (torch.rand(n, generator=generator) < 0.5 for _ in range(2))
    for i in range(n):
        x[i, 0, slice(4, 8) if below[i] else slice(4), slice(4, 8) if right[i] else slice(4)] += 0.6
    return x, below.long() * 2 + right.long() if both else below.long()


def test_a_symmetry_is_kept_where_the_label_survives_it() -> None:
    x, labels = corners(80, both=False)
    assert kept_symmetries(x, labels) == Symmetries(mirror=True, flip=False, turn=False)
    x, labels = corners(80, both=True)
    assert kept_symmetries(x, labels) == Symmetries()


def test_spots_anywhere_have_every_symmetry() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(60) % 2
    x = torch.rand(60, 1, 8, 8, generator=generator) * (0.3 + 0.7 * labels[:, None, None, None])
    assert kept_symmetries(x, labels) == Symmetries(True, True, True)


def test_digits_have_none() -> None:
    digits = load("builtin:digits", limit=150)
    assert digits.labels is not None
    assert kept_symmetries(digits.batch(torch.arange(150)), digits.labels) == Symmetries()


def test_too_few_labels_and_labels_that_say_nothing_keep_none() -> None:
    x, labels = corners(10, both=False)
    assert kept_symmetries(x, labels) == Symmetries()
    nothing = torch.full((40, 1, 8, 8), 0.5)
    assert retained(nothing, torch.arange(40) % 2) == {"mirror": 0.0, "flip": 0.0, "turn": 0.0}
    assert kept_symmetries(torch.rand(40, 1, 8, 8), torch.zeros(40, dtype=torch.int64)) == Symmetries()


# ---- the augmentations of any set ----


def test_crops_move_whole_pixels_and_blur_nothing() -> None:
    x = torch.rand(30, 1, 16, 16, generator=torch.Generator().manual_seed(1))
    moved = crops(Symmetries())(x, torch.Generator().manual_seed(0))
    for before, after in zip(x[:, 0], moved[:, 0], strict=True):
        here = after[4:12, 4:12]
        found = [
            (dy, dx)
            for dy in range(-2, 3)
            for dx in range(-2, 3)
            if torch.equal(here, before[4 + dy : 12 + dy, 4 + dx : 12 + dx])
        ]
        assert len(found) == 1
    assert not torch.equal(moved, x)


def test_symmetries_come_about_every_second_time_and_only_when_asked() -> None:
    x = torch.rand(200, 1, 6, 6, generator=torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(0)
    for asked, turned in (
        (Symmetries(mirror=True), x.flip(3)),
        (Symmetries(flip=True), x.flip(2)),
        (Symmetries(turn=True), x.rot90(1, (2, 3))),
    ):
        still = crops(asked)
        still = type(still)(0, 0, 0, 0, 0, 0, 0, still.mirror, still.flip, still.quarters, whole_pixels=True)
        moved = still(x, generator)
        plain = (moved == x).flatten(1).all(1)
        other = (moved == turned).flatten(1).all(1) | (moved == x.rot90(3, (2, 3))).flatten(1).all(1)
        share = 0.25 if asked.turn else 0.5
        assert abs(float(plain.float().mean()) - share) < 0.12
        assert asked.turn or bool((plain | other).all())
        assert abs(float(other.float().mean()) - 0.5) < 0.12
    assert torch.equal(type(still)(0, 0, 0, 0, 0, 0, 0, whole_pixels=True)(x, generator), x)


def test_a_grey_square_of_at_most_half_the_width() -> None:
    x = torch.rand(50, 1, 16, 16, generator=torch.Generator().manual_seed(1))
    drawn = strong(Symmetries()).draw(50, torch.Generator().manual_seed(0))
    assert drawn.box is not None and float(drawn.box[:, 2].max()) <= 0.5
    with_box, without = warp(x, drawn), warp(x, type(drawn)(drawn.affine, drawn.bend, drawn.light))
    changed = with_box != without
    assert 0 < float(changed.float().mean()) < 0.25
    assert int(changed.flatten(1).sum(1).max()) <= 81
    rows = slice(10, 20)
    torch.testing.assert_close(warp(x[rows], drawn.rows(rows)), with_box[rows])
