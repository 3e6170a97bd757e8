"""Features of the user's own: marked arrays, .npy, .npz and Parquet; what could be two things is refused."""

from pathlib import Path

import numpy as np
import pytest
import torch

from semisight.data import load
from semisight.data.features import Features, is_feature_file, read_features, refuse_unmarked
from semisight.errors import UserError

ROWS = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
FILES = [f"a/{i}.jpg" for i in range(6)]


def test_marked_arrays() -> None:
    features = Features(ROWS, FILES)
    assert (len(features), features.shape, features.views, features.names) == (6, (4, 1, 1), 1, tuple(FILES))
    assert torch.equal(features.values(), torch.from_numpy(ROWS).reshape(6, 4, 1, 1))
    assert torch.equal(features.values(torch.tensor([4, 1]))[:, :, 0, 0], torch.from_numpy(ROWS[[4, 1]]))
    assert torch.equal(features.values(slice(2, 4))[:, :, 0, 0], torch.from_numpy(ROWS[2:4]))
    assert features.values([]).shape == (0, 4, 1, 1)
    assert Features(torch.from_numpy(ROWS).half()).values().dtype == torch.float32
    maps = Features(np.zeros((3, 8, 2, 5)))
    assert maps.shape == (8, 2, 5) and maps.names == ("00000", "00001", "00002")


def test_views_and_subsets() -> None:
    array = np.arange(5 * 3 * 2, dtype=np.float32).reshape(5, 3, 2, 1, 1)
    features = Features(array)
    assert features.views == 3
    assert torch.equal(features.values([4], 2).flatten(), torch.tensor([28.0, 29.0]))
    part = features.subset(torch.tensor([True, False, True, False, True]))
    assert part.names == ("00000", "00002", "00004")
    assert torch.equal(part.subset([2, 0]).values([0], 1).flatten(), torch.tensor([26.0, 27.0]))
    with pytest.raises(UserError, match="no view 3"):
        features.values([0], 3)
    with pytest.raises(UserError, match="no view -1"):
        features.values([0], -1)


def test_values_are_a_copy() -> None:
    array = ROWS.copy()
    Features(array).values().zero_()
    assert np.array_equal(array, ROWS)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.zeros(5), r"shape \[5\]"),
        (np.zeros((5, 2, 2)), "rows"),
        (np.zeros((0, 3)), r"\[0, 3\]"),
        (np.array([["a", "b"]]), "numbers"),
        (np.where(np.arange(12).reshape(4, 3) == 7, np.nan, 1.0), "row 2 of the features holds NaN"),
    ],
)
def test_what_cannot_be_features(values: np.ndarray, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Features(values)


def test_names_are_counted() -> None:
    with pytest.raises(UserError, match="6 rows of features, but 5 names"):
        Features(ROWS, FILES[:5])


def test_an_unmarked_array_has_two_meanings() -> None:
    with pytest.raises(UserError, match=r"\[6, 1280\].*two things.*semisight\.Features\(array\).*reshape\(6, height"):
        refuse_unmarked((6, 1280))
    with pytest.raises(UserError, match=r"mark them: features:codes\.npy"):
        refuse_unmarked((6, 1280), "codes.npy", "codes.npy")
    refuse_unmarked((6, 28, 28))  # images


def test_files_of_numpy(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", ROWS)
    found = read_features(f"features:{tmp_path / 'rows.npy'}")
    assert torch.equal(found.values().flatten(1), torch.from_numpy(ROWS)) and found.source.endswith("rows.npy")
    np.savez_compressed(tmp_path / "rows.npz", features=ROWS.astype(np.float16), files=np.array(FILES))
    named = read_features(tmp_path / "rows.npz")
    assert named.names == tuple(FILES)
    np.testing.assert_allclose(named.values().flatten(1), ROWS, rtol=1e-2)
    np.savez(tmp_path / "images.npz", images=ROWS)
    assert is_feature_file(tmp_path / "rows.npz") and is_feature_file("features:any.npy")
    assert not is_feature_file(tmp_path / "images.npz") and not is_feature_file(tmp_path / "rows.npy")
    assert not is_feature_file(tmp_path) and not is_feature_file(tmp_path / "none.npz")
    with pytest.raises(UserError, match="no array `features`; it holds images"):
        read_features(tmp_path / "images.npz")


def test_files_that_are_wrong(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no file"):
        read_features(tmp_path / "none.npy")
    (tmp_path / "rows.csv").write_text("1,2\n")
    with pytest.raises(UserError, match=r"not from rows\.csv"):
        read_features(tmp_path / "rows.csv")
    np.save(tmp_path / "objects.npy", np.array([{}, {}], object), allow_pickle=True)
    np.savez(tmp_path / "short.npz", features=ROWS, files=np.array(FILES[:2]))
    np.savez(tmp_path / "numbers.npz", features=ROWS, files=np.arange(6))
    (tmp_path / "noise.npz").write_bytes(b"PK\x03\x04 nothing")
    (tmp_path / "noise.npy").write_bytes(b"nothing")
    for name, message in {
        "objects.npy": "damaged",
        "short.npz": r"short\.npz: 6 rows of features, but 2 names",
        "numbers.npz": "list of names",
        "noise.npz": "damaged",
        "noise.npy": "damaged",
    }.items():
        with pytest.raises(UserError, match=message):
            read_features(tmp_path / name)


def test_parquet(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'semisight[parquet]'")
    from pyarrow import parquet

    rows = [row.tolist() for row in ROWS]
    parquet.write_table(pa.table({"file": FILES, "features": rows, "n": range(6)}), tmp_path / "lists.parquet")
    fixed = pa.array(rows, pa.list_(pa.float32(), 4))
    parquet.write_table(pa.table({"path": FILES, "features": fixed}), tmp_path / "fixed.parquet")
    columns = {f"f{k}": ROWS[:, k] for k in range(4)}
    parquet.write_table(pa.table({"photo": FILES, **columns, "note": ["x"] * 6}), tmp_path / "columns.pq")
    for name, column in {"lists.parquet": None, "fixed.parquet": None, "columns.pq": "photo"}.items():
        assert is_feature_file(tmp_path / name)
        found = read_features(tmp_path / name, file_column=column)
        assert found.names == tuple(FILES)
        np.testing.assert_allclose(found.values().flatten(1), ROWS, rtol=1e-6)
    with pytest.raises(UserError, match="no column file or files"):
        read_features(tmp_path / "columns.pq")
    parquet.write_table(pa.table({"file": FILES, "features": [[1.0]] * 5 + [[1.0, 2.0]]}), tmp_path / "ragged.parquet")
    parquet.write_table(pa.table({"file": FILES, "note": ["x"] * 6}), tmp_path / "words.parquet")
    parquet.write_table(pa.table({"file": FILES, "features": ["x"] * 6}), tmp_path / "text.parquet")
    (tmp_path / "noise.parquet").write_bytes(b"nothing")
    for name, message in {
        "ragged.parquet": "different lengths",
        "words.parquet": "neither",
        "text.parquet": "lists of numbers",
        "noise.parquet": "damaged",
    }.items():
        with pytest.raises(UserError, match=message):
            read_features(tmp_path / name)


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "rows.parquet").write_bytes(b"PAR1")
    with pytest.raises(UserError, match=r"pyarrow is needed: pip install 'semisight\[parquet\]'"):
        read_features(tmp_path / "rows.parquet")


def test_rows_in_an_npy_file_are_not_taken_for_images(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", ROWS)
    with pytest.raises(UserError, match=r"two things.*mark them: features:.*rows\.npy"):
        load(tmp_path / "rows.npy")
