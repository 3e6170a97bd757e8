"""Labels and tags from tables: matched by name, doubtful rows counted, contradictions refused."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from semisight.data.tables import read_labels, read_tags
from semisight.errors import UserError

NAMES = ("pets/a.png", "pets/b.png", "wild/c.png", "wild/b.png", "d.png")


def table(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "labels.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_labels_by_name_and_minus_one_elsewhere(tmp_path: Path) -> None:
    found = read_labels(
        table(tmp_path, "file,label\npets/a.png,dog\nwild/c.png,cat\npets/b.png,dog\nd.png,cat\n"), NAMES
    )
    assert found.labels.tolist() == [1, 1, 0, -1, 0] and found.labels.dtype == torch.int64
    assert found.class_names == ("cat", "dog") and found.warnings == ()


@pytest.mark.parametrize(
    "text",
    [
        "file,label\npets/a.png,dog\nd.png,cat\n",
        "\ufefffile,label\r\npets/a.png,dog\r\nd.png,cat\r\n",
        "label;comment;file\ndog;x;pets/a.png\ncat;y;d.png",
        "File\tLabel\npets/a.png\tdog\nd.png\tcat\n",
        ' file , label\n"pets/a.png", dog \n./d.png,cat\n\n\n',
        "\n\nfile,label\npets\\a.png,dog\n.\\d.png,cat\n",
        "file,label\na.png,dog\nd.png,cat\n",  # the last part of a name will do where only one image has it
        "file,label\npets/a.png,dog\nd.png,cat\nextra\n,\n",
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_tables_as_people_write_them(tmp_path: Path, text: str, encoding: str) -> None:
    content = text.encode() if encoding == "utf-8" else text.removeprefix("\ufeff").encode("utf-16")
    found = read_labels(table(tmp_path, content), NAMES)
    assert found.labels.tolist() == [1, -1, -1, -1, 0] and found.class_names == ("cat", "dog")


def test_doubtful_rows_are_counted(tmp_path: Path) -> None:
    rows = [f"ghost{i}.png,cat" for i in range(7)]
    rows += ["pets/a.png,dog", "pets/a.png,dog", "a.png,dog", "d.png,cat", "pets/b.png,", "b.png,cat", "wild/c.png,ox"]
    found = read_labels(table(tmp_path, "file,label\n" + "\n".join(rows)), NAMES)
    assert found.labels.tolist() == [1, -1, 2, -1, 0]
    text = "\n".join(found.warnings)
    assert "7 rows name files that are not among the images: ghost0.png" in text and "ghost4.png, ..." in text
    assert "2 rows repeat others: pets/a.png, a.png" in text
    assert "1 row has no label: pets/b.png" in text
    assert "1 row names a file that several folders have: b.png" in text
    assert "3 classes have a single labelled image: cat, dog, ox" in text and len(found.warnings) == 5


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        ("  \n \n", "is empty"),
        ("file,label\n", "no rows"),
        ("file,label\n,dog\n", "no rows"),
        ("name,label\na.png,dog\n", "no column file.*found: name, label"),
        ("a.png,dog\nd.png,cat\n", "no column file and no column label"),
        ("file,label\nx.png,dog\n", r"labels none of the 5 images.*x\.png.*pets/a\.png"),
        ("file,label\nd.png,dog\na.png,dog\n", "every image 'dog'"),
        ("file,label\nd.png,dog\nd.png,cat\na.png,cat\n", r"1 image more than one label: d\.png \(cat and dog\)"),
        ("file,label\na.png,dog\npets/a.png,cat\n", r"pets/a\.png \(cat and dog\)"),
        ('file,label\na.png,"' + "x" * 200_000 + '"\n', "not a readable table"),
    ],
)
def test_tables_that_cannot_be_used(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        read_labels(table(tmp_path, text), NAMES)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is missing"):
        read_labels(tmp_path / "missing.csv", NAMES)
    with pytest.raises(UserError, match="cannot read"):
        read_labels(tmp_path / "missing.npy", NAMES)
    with pytest.raises(UserError, match="is a folder"):
        read_labels(tmp_path, NAMES)


def test_accents_in_any_form_and_encoding(tmp_path: Path) -> None:
    names = ("caf\u00e9.png", "d.png")
    decomposed = "file,label\ncafe\u0301.png,x\nd.png,y\n"
    assert read_labels(table(tmp_path, decomposed), names).labels.tolist() == [0, 1]
    found = read_labels(table(tmp_path, "file,label\ncaf\u00e9.png,x\nd.png,y\n".encode("latin-1")), names)
    assert found.labels.tolist() == [0, 1] and "Latin-1" in found.warnings[0]


def test_numbers_are_sorted_as_numbers(tmp_path: Path) -> None:
    found = read_labels(table(tmp_path, "file,label\na,10\nb,9\nc,2\n"), ("a", "b", "c"))
    assert found.class_names == ("2", "9", "10") and found.labels.tolist() == [2, 1, 0]


def test_known_classes_keep_their_order(tmp_path: Path) -> None:
    path = table(tmp_path, "file,label\nd.png,dog\na.png,dog\n")
    found = read_labels(path, NAMES, class_names=("ox", "dog", "cat"))
    assert found.labels.tolist() == [1, -1, -1, -1, 1] and found.class_names == ("ox", "dog", "cat")
    with pytest.raises(UserError, match=r"no known class: dog; known: dogs, cat\. Did you mean 'dogs'"):
        read_labels(path, NAMES, class_names=("dogs", "cat"))


def test_arrays_of_labels(tmp_path: Path) -> None:
    path = tmp_path / "labels.npy"
    np.save(path, np.array([3, -1, 7, 3, 7]))
    found = read_labels(path, NAMES)
    assert found.labels.tolist() == [0, -1, 1, 0, 1] and found.class_names == ("3", "7")
    np.save(path, np.array(["dog", "", "cat", "cat", "dog"]))
    assert read_labels(path, NAMES).labels.tolist() == [1, -1, 0, 0, 1]
    np.save(path, np.full(5, -1))  # all unknown: nothing is learned from them, which is said where a run is made
    assert read_labels(path, NAMES).labels.tolist() == [-1] * 5
    for bad, says in (
        (np.array([0, 1]), "5 images"),
        (np.array([0.0, 1, 2, 3, 4]), "whole numbers"),
        (np.array([-2, 1, 2, 3, 4]), "the label -2"),
        (np.full(5, 2), "every image '2'"),
        (np.full(5, None), "Python objects"),
    ):
        np.save(path, bad)
        with pytest.raises(UserError, match=says):
            read_labels(path, NAMES)


words = st.text(st.characters(codec="utf-8", exclude_characters="\x00\r\n"), max_size=8)


@settings(max_examples=40)
@given(rows=st.lists(st.tuples(st.sampled_from(NAMES) | words, words), max_size=8), junk=st.binary(max_size=12))
def test_any_table_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, rows: list, junk: bytes) -> None:
    text = "file,label\n" + "".join(f"{file},{label}\n" for file, label in rows)
    path = tmp_path_factory.mktemp("tables") / "labels.csv"
    for content in (text.encode(), text.encode() + junk, junk + text.encode(), junk):
        path.write_bytes(content)
        try:
            found = read_labels(path, NAMES)
        except UserError as error:
            assert str(path) in str(error)
        else:
            assert int(found.labels.min()) >= -1 and int(found.labels.max()) < len(found.class_names)


# --- several labels per image

LISTED = "file,label\npets/a.png,dog\npets/a.png,brown\nd.png,cat\nd.png,?brown\npets/b.png,\n"
COLUMNS = "file,brown,cat,dog\npets/a.png,1,0,1\nd.png,,1,0\nb/none.png,1,1,1\npets/b.png,0,0,0\n"
TAGS = [[1, 0, 1], [0, 0, 0], [-1, -1, -1], [-1, -1, -1], [-1, 1, 0]]


def test_a_row_for_every_tag_of_an_image(tmp_path: Path) -> None:
    found = read_tags(table(tmp_path, LISTED), NAMES)
    assert found.column.names == ("brown", "cat", "dog") and found.warnings == ()
    assert found.column.values.tolist() == TAGS and found.column.values.dtype == torch.int8
    assert found.column.present.tolist() == [True, True, False, False, True]


def test_a_column_for_each_tag(tmp_path: Path) -> None:
    found = read_tags(table(tmp_path, COLUMNS), NAMES)
    assert found.column.names == ("brown", "cat", "dog") and found.column.values.tolist() == TAGS
    assert found.warnings == ("1 row names a file that is not among the images: b/none.png",)
    again = read_tags(table(tmp_path, COLUMNS.replace(",", ";") + "d.png;0;;\n"), NAMES)  # the rows add up
    assert again.column.values[4].tolist() == [0, 1, 0]


@pytest.mark.parametrize("text", [LISTED, COLUMNS])
def test_the_tags_of_a_model_keep_their_order(tmp_path: Path, text: str) -> None:
    found = read_tags(table(tmp_path, text), NAMES, ("dog", "cat", "brown", "old"))
    assert found.column.names == ("dog", "cat", "brown", "old")
    assert found.column.values[:, :3].tolist() == [row[::-1] for row in TAGS]
    # what is not listed an image has not; about what has no column nothing is known
    assert found.column.values[:, 3].tolist() == ([0, 0, -1, -1, 0] if text == LISTED else [-1] * 5)
    with pytest.raises(UserError, match="labels that are no known class: brown, cat; known"):
        read_tags(table(tmp_path, text), NAMES, ("dog", "cats"))


def test_tags_of_arrays(tmp_path: Path) -> None:
    np.save(tmp_path / "tags.npy", np.array(TAGS))
    np.savez(tmp_path / "tags.npz", tags=np.array(TAGS, np.float32), tag_names=["brown", "cat", "dog"])
    plain, named = read_tags(tmp_path / "tags.npy", NAMES), read_tags(tmp_path / "tags.npz", NAMES)
    assert plain.column.values.tolist() == named.column.values.tolist() == TAGS
    assert (plain.column.names, named.column.names) == (("0", "1", "2"), ("brown", "cat", "dog"))
    assert read_tags(tmp_path / "tags.npy", NAMES, ("x", "y", "z")).column.names == ("x", "y", "z")
    turned = read_tags(tmp_path / "tags.npz", NAMES, ("dog", "old", "cat", "brown")).column
    assert turned.values[0].tolist() == [1, -1, 0, 1]
    with pytest.raises(UserError, match="3 columns, but there are 2 tags"):
        read_tags(tmp_path / "tags.npy", NAMES, ("x", "y"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("file,label\nnowhere.png,dog\n", "labels none of the 5 images"),
        ("file,label\nd.png,dog\nd.png,?dog\n", r"says of d.png both dog and \?dog"),
        ("file,label\nd.png,\n", "gives no image a tag"),
        ("file,cat\nd.png,yes\n", "says 'yes' of d.png in the column cat: write 1"),
        ("file,cat\nd.png,1\nd.png,0\n", "both that it has cat and that it has not"),
        ("file,cat\nd.png,\n", "every entry is unknown"),
        ("name,cat\nd.png,1\n", "needs the columns file,label"),
        ("file\nd.png\n", "needs the columns file,label"),
    ],
)
def test_tags_that_cannot_be_meant(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_tags(table(tmp_path, text), NAMES)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((4, 2)), r"shape \[4, 2\]; they must be \[5, C\]"),
        (np.zeros(5), r"shape \[5\]"),
        (np.full((5, 2), 0.5), "1 .has it., 0 .has it not. or -1"),
        (np.full((5, 2), "1"), "1 .has it., 0 .has it not. or -1"),
        (np.full((5, 2), -1), "every entry is unknown"),
    ],
)
def test_arrays_that_are_no_tags(tmp_path: Path, array: np.ndarray, message: str) -> None:
    np.save(tmp_path / "tags.npy", array)
    with pytest.raises(UserError, match=message):
        read_tags(tmp_path / "tags.npy", NAMES)


def test_tags_that_teach_nothing_are_told(tmp_path: Path) -> None:
    found = read_tags(table(tmp_path, "file,cat,dog\nd.png,1,0\npets/a.png,1,\n"), NAMES)
    assert found.warnings == (
        "no image is known to have 1 tag: dog",
        "no image is known to be without 1 tag: cat",
    )


def test_one_label_each_or_tags(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"more than one label: pets/a.png .*--tags if images may have several"):
        read_labels(table(tmp_path, LISTED.replace("?", "")), NAMES)


def test_a_table_whose_labels_are_all_unknown_is_read(tmp_path: Path) -> None:
    table = tmp_path / "labels.csv"
    table.write_text("file,label\na.png,\nb.png,\n")
    found = read_labels(table, ["a.png", "b.png", "c.png"])
    assert found.labels.tolist() == [-1, -1, -1] and found.class_names == ()
    assert "2 rows have no label" in " ".join(found.warnings)
    with pytest.raises(UserError, match="is missing"):
        read_labels(tmp_path / "nowhere.csv", ["a.png"])
