"""The table of labels: what is confirmed stays, what others wrote stays, nothing is ever half."""

import csv
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semisight.data.caption_files import read_captions
from semisight.data.tables import read_labels
from semisight.errors import UserError
from semisight.server.table import Entry, Table, name_key


def rows(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.reader(file))


def test_begins_with_what_is_known_and_grows(tmp_path: Path) -> None:
    table = Table(tmp_path / "new folder" / "labels.csv", {"a.png": Entry("cat")})
    assert table.put("b.png", label="dog") == Entry()
    assert table.put("b.png", caption="a dog, asleep") == Entry("dog")
    assert table.put("a.png", label="cow") == Entry("cat")
    assert rows(table.path) == [["file", "label", "caption"], ["a.png", "cow", ""], ["b.png", "dog", "a dog, asleep"]]
    assert Table(table.path, {"c.png": Entry("ignored")}).entries() == table.entries()
    assert read_labels(table.path, ["a.png", "b.png", "c.png"]).labels.tolist() == [0, 1, -1]
    assert read_captions(table.path).captions == (("a dog, asleep",),)


def test_restoring_takes_back(tmp_path: Path) -> None:
    table = Table(tmp_path / "labels.csv", {"a.png": Entry("cat")})
    before = table.path.read_bytes()
    for file in ("a.png", "b.png"):
        former = table.put(file, "dog", "a dog")
        table.restore(file, former)
    assert table.path.read_bytes() == before


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        (b"file,label\na.png,cat", b"file,label\na.png,cat\nb.png,dog\n"),
        (b"file,label\r\na.png,cat\r\n", b"file,label\r\na.png,cat\r\nb.png,dog\r\n"),
        (b"\xef\xbb\xbffile;label;who\na.png;cat;me\n", b"\xef\xbb\xbffile;label;who\na.png;cat;me\nb.png;dog;\n"),
        (b"label\tfile\ncat\ta.png\n", b"label\tfile\ncat\ta.png\ndog\tb.png\n"),
        (b'file,label\n"a, or b.png",cat\n\n', b'file,label\n"a, or b.png",cat\n\nb.png,dog\n'),
    ],
)
def test_what_others_wrote_stays_as_it_is(content: bytes, wanted: bytes, tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_bytes(content)
    Table(path).put("b.png", label="dog")
    assert path.read_bytes() == wanted


def test_utf16_stays_utf16(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text("file\tlabel\nä.png\tcat\n", encoding="utf-16")
    Table(path).put("b.png", label="ö")
    assert path.read_text(encoding="utf-16") == "file\tlabel\nä.png\tcat\nb.png\tö\n"


def test_a_column_for_captions_is_added_when_needed(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text("label,file\ncat,a.png\n")
    table = Table(path)
    table.put("b.png", caption="two dogs")
    table.put("a.png", caption="one cat")
    assert rows(path) == [["label", "file", "caption"], ["cat", "a.png", "one cat"], ["", "b.png", "two dogs"]]


def test_changes_by_another_program_are_seen(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    table, other = Table(path), Table(path)
    other.put("a.png", label="cat")
    table.put("b.png", label="dog")
    assert set(other.entries()) == {"a.png", "b.png"}
    path.write_text("file,label\nc.png,cow\n")
    assert table.entries() == {"c.png": Entry("cow")}


def test_several_rows_of_an_image_keep_one_label(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text("file,label,caption\na.png,cat,one\n./a.png,cat,two\nb.png,dog,\n")
    Table(path).put("a.png", label="cow")
    assert rows(path)[1:] == [["a.png", "cow", "one"], ["./a.png", "cow", "two"], ["b.png", "dog", ""]]


def test_a_link_stays_a_link_and_a_private_table_private(tmp_path: Path) -> None:
    real = tmp_path / "real.csv"
    real.write_text("file,label\na.png,cat\n")
    real.chmod(0o600)
    link = tmp_path / "labels.csv"
    link.symlink_to(real)
    Table(link).put("b.png", label="dog")
    assert link.is_symlink() and len(rows(real)) == 3
    assert real.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("content", "fragment"),
    [
        (b"", "no column file and no column label"),
        (b"name,label\n", "no column file"),
        (b"file,label\n\xff.png,cat\n", "not in UTF-8"),
        (b'file,label\n"a.png,cat\n', "not a readable table"),
    ],
)
def test_a_table_that_cannot_be_added_to_is_refused(content: bytes, fragment: str, tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_bytes(content)
    with pytest.raises(UserError, match=fragment):
        Table(tmp_path / "labels.csv")
    assert (tmp_path / "labels.csv").read_bytes() == content


def test_a_full_disk_leaves_the_old_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(tmp_path / "labels.csv", {"a.png": Entry("cat")})
    before = table.path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="No space left"):
        table.put("b.png", label="dog")
    monkeypatch.undo()
    assert table.path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["labels.csv"]
    table.put("b.png", label="dog")
    assert len(rows(table.path)) == 3


Change = tuple[str, str, str | None]
words = st.text(st.characters(exclude_categories=["Cs", "Cc", "Z"]), min_size=1, max_size=8)


@settings(max_examples=20)
@given(st.lists(st.tuples(words, words, words | st.none()), max_size=4))
def test_any_text_comes_back(tmp_path_factory: pytest.TempPathFactory, changes: list[Change]) -> None:
    table = Table(tmp_path_factory.mktemp("table") / "labels.csv")
    wanted: dict[str, Entry] = {}
    for file, label, caption in changes:
        file = f"f{file}"
        table.put(file, label, caption)
        same = next((name for name in wanted if name_key(name) == name_key(file)), file)
        wanted[same] = Entry(label, wanted.get(same, Entry()).caption if caption is None else caption)
    assert Table(table.path).entries() == wanted


def test_threads_and_tables_do_not_lose_each_others_labels(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    tables = [Table(path), Table(path)]

    def work(number: int) -> None:
        for i in range(10):
            tables[number % 2].put(f"{number}-{i}.png", label="x")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(Table(path).entries()) == 40


WRITER = """
import sys
from pathlib import Path
from semisight.server.table import Table
table = Table(Path(sys.argv[1]))
for i in range(10_000):
    table.put(f"{sys.argv[2]}/{i}.png", label="cat" if i % 2 else "dog", caption=f"number {i}")
    print(i, flush=True)
"""


def test_kill_9_at_any_moment_loses_nothing_that_was_confirmed(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    confirmed: dict[str, Entry] = {}
    for turn in range(5):
        child = subprocess.Popen([sys.executable, "-c", WRITER, path, str(turn)], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        for line in child.stdout:
            i = int(line)
            confirmed[f"{turn}/{i}.png"] = Entry("cat" if i % 2 else "dog", f"number {i}")
            if i >= 5 + 7 * turn:
                break
        os.kill(child.pid, signal.SIGKILL)
        for line in child.stdout:  # written before the kill came
            if line.strip().isdigit():
                i = int(line)
                confirmed[f"{turn}/{i}.png"] = Entry("cat" if i % 2 else "dog", f"number {i}")
        child.wait()
        child.stdout.close()
        found = Table(path).entries()
        assert found.items() >= confirmed.items()
        assert len(found) - len(confirmed) <= turn + 1  # one may have been written and not confirmed
