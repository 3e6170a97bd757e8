"""Every format of caption file gives the same table, and bad input gives a clear error or a counted warning."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from semisight.data.caption_files import CaptionTable, read_captions
from semisight.data.vocabulary import MAX_WORDS, UNKNOWN, Vocabulary
from semisight.errors import UserError

CAPTIONS = {
    "1.jpg": ["A dog, running.", 'A "brown" dog'],
    "2.jpg": ["Two girls 😀 play", "девочки играют"],
    "3.jpg": ["a cat"],
}
SPLITS = {"1.jpg": "train", "2.jpg": "val", "3.jpg": "train"}


def karpathy(path: Path) -> None:
    images = [
        {"filename": name, "split": SPLITS[name], "sentences": [{"raw": c, "tokens": c.split()} for c in captions]}
        for name, captions in CAPTIONS.items()
    ]
    path.write_text(json.dumps({"dataset": "test", "images": images}))


def coco(path: Path) -> None:
    images = [{"id": 10 + i, "file_name": name} for i, name in enumerate(CAPTIONS)]
    annotations = [{"image_id": 10 + i, "id": 0, "caption": c} for i, n in enumerate(CAPTIONS) for c in CAPTIONS[n]]
    path.write_text(json.dumps({"info": {}, "annotations": annotations, "images": images}))


def token_file(path: Path) -> None:
    lines = [f"{name}#{i}\t{c}" for name, captions in CAPTIONS.items() for i, c in enumerate(captions)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def comma_separated(path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8-sig") as file:  # as spreadsheets write it
        writer = csv.writer(file)
        writer.writerow(["File", "caption", "split"])
        writer.writerows([name, c, SPLITS[name]] for name, captions in CAPTIONS.items() for c in captions)


def json_lines(path: Path) -> None:
    rows = [{"file": name, "caption": captions, "split": SPLITS[name]} for name, captions in CAPTIONS.items()]
    path.write_text("\n\n".join(map(json.dumps, rows)))


WRITERS = [karpathy, coco, token_file, comma_separated, json_lines]


@pytest.mark.parametrize("write", WRITERS)
def test_every_format_gives_the_same_table(tmp_path: Path, write: Callable[[Path], None]) -> None:
    file = tmp_path / "captions.txt"  # the name says nothing: the content is looked at
    write(file)
    table = read_captions(file)
    assert dict(zip(table.names, map(list, table.captions), strict=True)) == CAPTIONS
    assert table.warnings == ()
    assert (len(table), table.n_captions) == (3, 5)
    if write in (karpathy, comma_separated, json_lines):
        assert dict(zip(table.names, table.splits, strict=True)) == SPLITS
        assert table.subset("train").names == ("1.jpg", "3.jpg")
    else:
        assert set(table.splits) == {""}


def test_karpathys_coco_has_folders(tmp_path: Path) -> None:
    image = {"filepath": "val2014", "filename": "x.jpg", "split": "restval", "sentences": [{"tokens": ["a", "dog"]}]}
    (tmp_path / "c.json").write_text(json.dumps({"images": [image]}))
    table = read_captions(tmp_path / "c.json")
    assert (table.names, table.captions, table.splits) == (("val2014/x.jpg",), (("a dog",),), ("restval",))


def test_captions_of_missing_images_are_counted(tmp_path: Path) -> None:
    karpathy(tmp_path / "c.json")
    for name in ("photos/1.jpg", "photos/deep/3.jpg", "photos/9.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_bytes(b"")
    table = read_captions(tmp_path / "c.json", tmp_path / "photos")
    assert table.names == ("1.jpg", "deep/3.jpg")
    assert table.captions == (tuple(CAPTIONS["1.jpg"]), tuple(CAPTIONS["3.jpg"]))
    assert len(table.warnings) == 1
    assert "2 captions of 1 image missing" in table.warnings[0] and "'2.jpg'" in table.warnings[0]


def test_no_image_at_all_is_an_error(tmp_path: Path) -> None:
    karpathy(tmp_path / "c.json")
    (tmp_path / "photos").mkdir()
    with pytest.raises(UserError, match=r"none of the 3 images .*'1\.jpg'"):
        read_captions(tmp_path / "c.json", tmp_path / "photos")
    with pytest.raises(UserError, match="does not exist"):
        read_captions(tmp_path / "c.json", tmp_path / "fotos")


def table(*names: str) -> CaptionTable:
    return CaptionTable(names, tuple((f"caption of {name}",) for name in names), ("",) * len(names))


def test_matching_by_path_and_by_its_ends() -> None:
    images = ["train/1.jpg", "val/1.jpg", "val/2.jpg", "3.jpg"]
    captions, found = table("/home/me/val/1.jpg", "2.jpg", "pictures/3.jpg", "1.jpg", "test/2.jpg").match(images)
    # "1.jpg" could be either image, and "test/2.jpg" is another image than "val/2.jpg".
    assert captions == ((), ("caption of /home/me/val/1.jpg",), ("caption of 2.jpg",), ("caption of pictures/3.jpg",))
    assert found.names == ("val/1.jpg", "val/2.jpg", "3.jpg")
    assert "2 captions of 2 images missing" in found.warnings[0]


def test_two_names_of_one_image_share_it() -> None:
    captions, found = table("a/1.jpg", "b/1.jpg").match(["1.jpg"])
    assert captions == (("caption of a/1.jpg", "caption of b/1.jpg"),)
    assert found.names == ("1.jpg",) and found.n_captions == 2 and found.warnings == ()


def write_csv(path: Path, *rows: str) -> Path:
    path.write_text("\n".join(["file,caption", *rows]), encoding="utf-8")
    return path


def test_empty_and_wordless_captions_are_counted(tmp_path: Path) -> None:
    read = read_captions(write_csv(tmp_path / "c.csv", "1.jpg,a dog", "1.jpg,", "2.jpg,  ", "3.jpg,...", "4.jpg,😀🐶"))
    assert read.names == ("1.jpg",)
    assert read.warnings == ("4 captions empty or without a word: left out",)


def test_rows_that_cannot_be_used_are_counted(tmp_path: Path) -> None:
    rows = ["1.jpg,a dog", "2.jpg,a cat, unquoted", "only", ",no file", "", '3.jpg,"a cat, quoted"']
    read = read_captions(write_csv(tmp_path / "c.csv", *rows))
    assert read.captions == (("a dog",), ("a cat, quoted",))
    assert read.warnings == ("3 rows without an image's name or without text as caption: left out",)
    lines = [
        '{"file": "1.jpg", "caption": "a dog"}',
        "[1]",
        '{"file": "2.jpg", "caption": null}',
        '{"file": 3, "caption": "x"}',
    ]
    (tmp_path / "c.jsonl").write_text("\n".join(lines))
    read = read_captions(tmp_path / "c.jsonl")
    assert read.names == ("1.jpg",) and "3 rows" in read.warnings[0]


def test_karpathy_and_coco_with_holes(tmp_path: Path) -> None:
    images = [
        {"filename": "1.jpg", "sentences": [{"raw": "a dog"}, {}, 5]},
        {"sentences": [{"raw": "x"}]},
        7,
        {"filename": "2.jpg"},
    ]
    (tmp_path / "k.json").write_text(json.dumps({"images": images}))
    read = read_captions(tmp_path / "k.json")
    assert read.captions == (("a dog",),) and "5 rows" in read.warnings[0]
    annotations = [
        {"image_id": 1, "caption": "a dog"},
        {"image_id": 2, "caption": "lost"},
        {"image_id": [], "caption": "x"},
        3,
    ]
    (tmp_path / "c.json").write_text(
        json.dumps({"images": [{"id": 1, "file_name": "1.jpg"}, 4], "annotations": annotations})
    )
    read = read_captions(tmp_path / "c.json")
    assert read.captions == (("a dog",),) and "3 rows" in read.warnings[0]


def test_other_scripts_and_emoji_stay_in_the_text(tmp_path: Path) -> None:
    read = read_captions(write_csv(tmp_path / "c.csv", "1.jpg,собака 🐶 бежит", "2.jpg,犬が走る", "3.jpg,كلب يجري"))
    assert read.captions == (("собака 🐶 бежит",), ("犬が走る",), ("كلب يجري",)) and read.warnings == ()


def test_half_an_emoji_can_still_be_written(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text('{"file": "1.jpg", "caption": "a dog \\ud83d runs"}')
    text = read_captions(tmp_path / "c.jsonl").captions[0][0]
    Vocabulary.from_captions([text], min_count=1).save(tmp_path / "v.json")
    assert text.encode() and text.startswith("a dog")


def test_a_caption_of_10_000_words(tmp_path: Path) -> None:
    read = read_captions(write_csv(tmp_path / "c.csv", "1.jpg," + "dog " * 10_000, "2.jpg,a cat"))
    assert len(read) == 2
    assert f"1 caption longer than {MAX_WORDS} words (the longest 10000)" in read.warnings[0]
    encoded = Vocabulary.from_captions([c for cs in read.captions for c in cs], 1).encode(
        [cs[0] for cs in read.captions]
    )
    assert encoded.shape[1] == MAX_WORDS


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b" \n ", "is empty"),
        (b"\x89PNG\r\n\x1a\n\x00\xff\xd8", "not text in UTF-8"),
        ("file,caption\n1.jpg,café".encode("latin-1"), "convert it to UTF-8"),
        (b"hello there, this is a letter\nto you", "no caption file.*'hello there'"),
        (b"file,text\n1.jpg,a dog", "columns 'file', 'text'.*file,caption"),
        (b"file,caption\n", "it is empty"),
        (b"file,caption\n1.jpg,\n", "no caption in .*none of its 1 rows"),
        (b'file,caption\n1.jpg,"a dog" and\n', "line 2.*not CSV"),
        (b'{"images": [{"filename": "1.jpg", "sent', "Is it cut off"),
        (b'{"a": 1, "b": 2}', "keys 'a', 'b'"),
        (b"[1, 2]", "a list, not a caption file"),
        (b'{"images": [], "annotations": []}', "it is empty"),
        (b'{"images": [{"id": 1}], "annotations": [{"image_id": 1, "bbox": []}]}', "captions_"),
        (b'{"file": "1.jpg", "caption": "a dog"}\n{"file": "2', "line 2 .* not json"),
        (b'{"path": "1.jpg", "text": "a dog"}\n{"path": "2.jpg", "text": "a cat"}', "keys 'path', 'text'.*need"),
    ],
)
def test_a_file_in_the_wrong_format(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "captions.any"
    file.write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        read_captions(file)
    assert "captions.any" in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"could not read .*nothing\.json"):
        read_captions(tmp_path / "nothing.json")
    with pytest.raises(UserError, match="could not read"):
        read_captions(tmp_path)


def test_a_split_that_is_not_there(tmp_path: Path) -> None:
    karpathy(tmp_path / "c.json")
    with pytest.raises(UserError, match=r"no image in the split test; its splits are train: 2, val: 1"):
        read_captions(tmp_path / "c.json").subset("test")


def test_flickr8k(data_root: Path) -> None:
    folder = data_root / "flickr8k"
    if not folder.exists():
        pytest.skip(f"needs {folder}")
    read = read_captions(folder / "dataset_flickr8k.json", folder / "Images")
    train, valid = read.subset("train"), read.subset("val")
    assert (len(train), len(valid), read.n_captions, read.warnings) == (6000, 1000, 35_000, ())
    vocabulary = Vocabulary.from_captions(c for captions in train.captions for c in captions)
    assert 2400 < len(vocabulary) < 2700
    symbols = [symbol for captions in valid.captions for c in captions for symbol in vocabulary.symbols(c)]
    assert symbols.count(UNKNOWN) < 0.05 * len(symbols)
