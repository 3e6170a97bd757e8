"""Augmented images: small changes, seeded, each in its own way, and never out of range."""

import dataclasses

import torch

from semisight.data.augment import PHOTO_AUGMENT, Augment, augment_for, warp


def images(n: int = 6) -> torch.Tensor:
    x = torch.zeros(n, 1, 28, 28)
    x[:, :, 8:20, 10:18] = 0.8
    return x


def test_no_strength_no_change() -> None:
    x = torch.rand(3, 3, 16, 16)
    moved = Augment(bend=0.0, light=0.0)(x, torch.Generator().manual_seed(0), strength=0.0)
    torch.testing.assert_close(moved, x, atol=1e-5, rtol=0)


def test_the_same_seed_changes_the_same_way_and_each_image_in_its_own() -> None:
    a = Augment()(images(), torch.Generator().manual_seed(1))
    b = Augment()(images(), torch.Generator().manual_seed(1))
    assert torch.equal(a, b)
    assert not torch.equal(a[0], a[1])
    assert 0 <= float(a.min()) <= float(a.max()) <= 1


def test_a_shift_is_a_shift() -> None:
    drawn = Augment(bend=0.0, light=0.0).draw(1, torch.Generator().manual_seed(0), strength=0.0)
    affine = drawn.affine.clone()
    affine[:, 0, 2] = 2 * 3 / 28  # three pixels, in units of half the width
    moved = warp(images(1), type(drawn)(affine, drawn.bend, drawn.light))
    torch.testing.assert_close(moved, images(1).roll(-3, dims=3), atol=1e-4, rtol=0)


def test_changes_are_small_and_grow_with_strength() -> None:
    x = images(200)
    change = [
        float((Augment()(x, torch.Generator().manual_seed(2), strength=s) - x).abs().mean()) for s in (0.2, 0.5, 1.0)
    ]
    assert change[0] < change[1] < change[2] < 0.1


def test_mirror_images_only_when_asked() -> None:
    x = torch.zeros(64, 1, 8, 8)
    x[:, :, :, :2] = 1.0
    still = Augment(turn=0, scale=0, aspect=0, shear=0, shift=0, bend=0, light=0)
    mirrored = Augment(turn=0, scale=0, aspect=0, shear=0, shift=0, bend=0, light=0, mirror=True)
    generator = torch.Generator().manual_seed(3)
    assert float(still(x, generator)[..., -1].max()) < 0.1
    flipped = mirrored(x, generator)[..., -1].mean((1, 2)) > 0.5
    assert 10 < int(flipped.sum()) < 54


def test_rows_of_a_draw_are_those_of_these_images() -> None:
    x = torch.rand(4, 1, 12, 12)
    drawn = Augment().draw(4, torch.Generator().manual_seed(4))
    torch.testing.assert_close(warp(x[1:3], drawn.rows(slice(1, 3))), warp(x, drawn)[1:3])


def test_images_in_colour_are_taken_for_photographs_unless_said_otherwise() -> None:
    assert augment_for(1) == Augment() and augment_for(3) == PHOTO_AUGMENT
    assert augment_for(3, "drawings") == Augment() and augment_for(1, "photos") == PHOTO_AUGMENT
    assert PHOTO_AUGMENT.mirror and not Augment().mirror
    x = images()
    near, far = (
        float((augment(x, torch.Generator().manual_seed(2)) - x).abs().mean())
        for augment in (dataclasses.replace(PHOTO_AUGMENT, mirror=False), Augment())
    )
    assert near < far
