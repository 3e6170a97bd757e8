"""The table of labels: what is confirmed stays, what others wrote stays, nothing is ever half, whoever writes it."""

import contextlib
import csv
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.full_disk import disk_with_room_for
from semisight.data import label_table
from semisight.data.caption_files import read_captions
from semisight.data.label_csv import Entry, name_key
from semisight.data.label_table import Nothing, ReadOnly, Table, unmerged
from semisight.data.tables import read_labels
from semisight.errors import UserError


def merged(table: Table) -> Path:
    assert table.merge(quiet=0) and table.is_merged
    return table.path


def lines(table: Table) -> list[dict[str, Any]]:
    return [json.loads(line) for line in table.journal.read_text().splitlines()]


def rows(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.reader(file))


def test_begins_with_what_is_known_and_grows(tmp_path: Path) -> None:
    table = Table(tmp_path / "new folder" / "labels.csv", {"a.png": Entry("cat")})
    assert table.put("b.png", label="dog") == Entry()
    assert table.put("b.png", caption="a dog, asleep") == Entry("dog")
    assert table.put("a.png", label="cow") == Entry("cat")
    assert rows(table.path) == [["file", "label", "caption"], ["a.png", "cat", ""]], "a label rewrites no table"
    assert table.counts() == {"cow": 1, "dog": 1} and table.get("./b.png") == Entry("dog", "a dog, asleep")
    merged(table)
    assert rows(table.path) == [["file", "label", "caption"], ["a.png", "cow", ""], ["b.png", "dog", "a dog, asleep"]]
    assert Table(table.path, {"c.png": Entry("ignored")}).entries() == table.entries()
    assert read_labels(table.path, ["a.png", "b.png", "c.png"]).labels.tolist() == [0, 1, -1]
    assert read_captions(table.path).captions == (("a dog, asleep",),)


def test_what_was_changed_is_taken_back_step_by_step(tmp_path: Path) -> None:
    table = Table(tmp_path / "labels.csv", {"a.png": Entry("cat")})
    before = table.path.read_bytes()
    for file in ("a.png", "b.png"):
        former = table.put(file, "dog", "a dog")
        table.put(file, "cow")
        assert table.undo(file) == Entry("dog", "a dog") and table.undo(file) == former
        with pytest.raises(Nothing):
            table.undo(file)
    merged(table)
    assert table.path.read_bytes() == before


def test_two_processes_share_a_session(tmp_path: Path) -> None:
    """As the workers of one server do: what one has done, the other sees and can take back; a third came later."""
    first = Table(tmp_path / "labels.csv", {"old.png": Entry("cat")})
    first.put("before.png", "cat")
    start = first.journal.stat().st_size
    first.close()
    first, second = (Table(tmp_path / "labels.csv", since=start) for _ in range(2))
    with pytest.raises(Nothing):  # before the session
        first.undo("before.png")
    first.put("a.png", "cat", who="ann")
    first.put("a.png", "dog", who="ann")
    first.skip("b.png")
    second.glance()
    assert second.get("a.png") == Entry("dog")
    assert second.news() == [("a.png", Entry("cat")), ("a.png", Entry("dog")), ("b.png", Entry())] and not second.news()
    assert list(second.passed) == ["a.png", "b.png"]
    assert second.undo("b.png") == Entry() and second.undo("a.png", who="ben") == Entry("cat")
    merged(second)
    third = Table(tmp_path / "labels.csv", since=start)  # one that took a dead one's place, after all was merged
    assert not third.passed and third.undo("a.png") == Entry()
    first.glance()
    assert first.get("a.png") == Entry() and first.returned == ["b.png", "a.png", "a.png"]
    for table in (first, second, third):
        merged(table)
    assert [row[:2] for row in rows(first.path)[1:]] == [["old.png", "cat"], ["before.png", "cat"]]


def test_two_processes_that_merge_in_turn_lose_no_edit_of_a_third(tmp_path: Path) -> None:
    """The file under a second name belongs to who replaced the table last."""
    first = Table(tmp_path / "labels.csv", {"old.png": Entry("cat")})
    second = Table(first.path)
    for number, table in enumerate((first, second, first, second)):
        table.put(f"{number}.png", "dog")
        merged(table)
    first.path.write_text(first.path.read_text() + "edited.png,cow,\n")
    first.put("last.png", "dog")
    merged(first)
    merged(second)
    assert second.entries()["edited.png"] == Entry("cow")
    assert {row[0] for row in rows(first.path)[1:]} == {
        "old.png",
        "edited.png",
        "last.png",
        *(f"{i}.png" for i in range(4)),
    }


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
    table = Table(path)
    table.put("b.png", label="dog")
    merged(table)
    assert path.read_bytes() == wanted


def test_utf16_stays_utf16(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text("file\tlabel\nä.png\tcat\n", encoding="utf-16")
    table = Table(path)
    table.put("b.png", label="ö")
    merged(table)
    assert path.read_text(encoding="utf-16") == "file\tlabel\nä.png\tcat\nb.png\tö\n"


def test_a_column_for_captions_is_added_when_needed(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text("label,file\ncat,a.png\n")
    table = Table(path)
    table.put("b.png", caption="two dogs")
    table.put("a.png", caption="one cat")
    merged(table)
    assert rows(path) == [["label", "file", "caption"], ["cat", "a.png", "one cat"], ["", "b.png", "two dogs"]]


def test_changes_by_another_program_are_seen(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    table, other = Table(path), Table(path)
    other.put("a.png", label="cat")
    table.put("b.png", label="dog")
    assert set(other.entries()) == {"a.png", "b.png"}
    merged(other)
    path.write_text("file,label\na.png,fox\nc.png,cow\n")  # read before b.png was labelled, then edited
    assert table.entries() == {"a.png": Entry("fox"), "b.png": Entry("dog"), "c.png": Entry("cow")}
    merged(table)
    assert Table(path).entries() == table.entries()
    path.write_text("file,label\nc.png,cow\n")
    assert Table(path).entries() == {"c.png": Entry("cow")}, "whoever opens a merged table takes it as it is"


def test_several_rows_of_an_image_keep_one_label(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text("file,label,caption\na.png,cat,one\n./a.png,cat,two\nb.png,dog,\n")
    table = Table(path)
    table.put("a.png", label="cow")
    merged(table)
    assert rows(path)[1:] == [["a.png", "cow", "one"], ["./a.png", "cow", "two"], ["b.png", "dog", ""]]


def test_a_link_stays_a_link_and_a_private_table_private(tmp_path: Path) -> None:
    real = tmp_path / "real.csv"
    real.write_text("file,label\na.png,cat\n")
    real.chmod(0o600)
    link = tmp_path / "labels.csv"
    link.symlink_to(real)
    table = Table(link)
    table.put("b.png", label="dog")
    merged(table)
    assert link.is_symlink() and len(rows(real)) == 3
    assert real.stat().st_mode & 0o777 == 0o600
    assert table.journal.stat().st_mode & 0o777 == 0o600


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
    assert table.path.read_bytes() == before and table.get("b.png") == Entry() and lines(table) == []
    table.put("b.png", label="dog")
    with monkeypatch.context() as patch, pytest.raises(UserError, match="No space left"):
        patch.setattr(os, "fsync", full)
        table.merge(quiet=0)
    assert table.path.read_bytes() == before and Table(table.path).get("b.png") == Entry("dog")
    assert len(rows(merged(table))) == 3


def test_a_disk_that_fills_in_the_middle_of_a_line_leaves_none(tmp_path: Path) -> None:
    table = Table(tmp_path / "labels.csv")
    table.put("a.png", label="cat")
    size = table.journal.stat().st_size
    with disk_with_room_for(size + 10), pytest.raises(UserError, match="unchanged"):
        table.put("b.png", label="dog")
    assert table.journal.stat().st_size == size
    table.put("c.png", label="cow")
    assert Table(table.path).entries() == {"a.png": Entry("cat"), "c.png": Entry("cow")}


def test_every_change_has_a_line_that_says_who_when_and_from_what_to_what(tmp_path: Path) -> None:
    table = Table(tmp_path / "labels.csv")
    table.put("a.png", label="cat", who="ann")
    table.put("a.png", label="cat", who="ben")  # changes nothing
    table.put("a.png", "dog", "a dog", who="ben")
    table.undo("a.png", who="ann")
    merged(table)
    *changes, last = lines(table)
    assert [(line["who"], line["file"], line["from"], line["to"]) for line in changes] == [
        ("ann", "a.png", ["", ""], ["cat", ""]),
        ("ben", "a.png", ["cat", ""], ["dog", "a dog"]),
        ("ann", "a.png", ["dog", "a dog"], ["cat", ""]),
    ]
    assert all(line["at"].startswith("20") for line in changes) and "merged" in last
    assert unmerged(table.path) == []


def test_half_a_line_and_a_flipped_bit_are_no_change(tmp_path: Path) -> None:
    table = Table(tmp_path / "labels.csv")
    table.put("a.png", label="cat")
    table.put("b.png", label="cat")
    table.put("c.png", label="cat")
    first, second, third = table.journal.read_bytes().splitlines(keepends=True)
    table.journal.write_bytes(first + second.replace(b"cat", b"bat") + third[:-20])  # killed while writing
    again = Table(table.path)
    assert again.entries() == {"a.png": Entry("cat")}
    again.put("d.png", label="dog")
    assert Table(table.path).entries() == {"a.png": Entry("cat"), "d.png": Entry("dog")}


def test_a_long_journal_is_read_from_its_last_merge_on(tmp_path: Path) -> None:
    table = Table(tmp_path / "labels.csv")
    for i in range(400):  # more than a block
        table.put(f"{i}.png", label="x" * 150)
    merged(table)
    table.put("0.png", label="new")
    assert [line["file"] for line in unmerged(table.path)] == ["0.png"]
    assert Table(table.path).get("0.png") == Entry("new") and len(Table(table.path)) == 400


# --- other programs


@contextlib.contextmanager
def half_saved(path: Path) -> Iterator[tuple[Table, Callable[[], None]]]:
    """A table of which another program has saved the first half of its new rows when a label arrives.

    Gives the table, and what lets the program save the rest. In the end nothing is lost.
    """
    path.write_text("file,label\n" + "".join(f"{i}.png,cat\n" for i in range(100)))
    table = Table(path)
    with path.open("w") as program:
        program.write("file,label\n" + "".join(f"{i}.png,dog\n" for i in range(50)))
        program.flush()
        table.put("new.png", label="cow")

        def rest() -> None:
            program.write("".join(f"{i}.png,dog\n" for i in range(50, 100)))
            program.close()

        yield table, rest
    assert len(rows(merged(table))) == 102
    assert table.entries() == {f"{i}.png": Entry("dog") for i in range(100)} | {"new.png": Entry("cow")}


def test_a_table_that_another_program_is_saving_is_left_alone(tmp_path: Path) -> None:
    """It goes on for a while, and nothing is lost."""
    with half_saved(tmp_path / "labels.csv") as (table, rest):
        table.tend()
        assert not table.merge(), "it was changed a moment ago"
        rest()
        table.tend()


def test_a_program_that_pauses_longer_than_we_wait_loses_nothing_either(tmp_path: Path) -> None:
    """The table is replaced under it: what it writes then goes to the old file, which is looked at too."""
    with half_saved(tmp_path / "labels.csv") as (table, rest):
        table.refresh()
        assert len(rows(merged(table))) == 52
        rest()
        table.refresh()
        assert not table.is_merged


def test_half_a_table_that_cannot_be_read_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text("file,label\na.png,cat\n")
    table = Table(path)
    path.write_text('file,label\n"a.pn')
    table.put("b.png", label="dog")
    table.refresh()
    assert "not a readable table" in table.problem and not table.merge(quiet=0)
    assert table.get("a.png") == Entry("cat") and path.read_text() == 'file,label\n"a.pn'
    path.write_text('file,label\n"a.png",cow\n')
    table.refresh()
    assert len(rows(merged(table))) == 3 and table.get("a.png") == Entry("cow") and not table.problem


def test_a_stale_copy_undoes_no_label_but_an_edit_stays(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text("file,label\na.png,cat\nb.png,cat\n")
    table = Table(path)
    table.put("a.png", label="dog")
    merged(table)
    copy = path.read_text()  # a spreadsheet reads it now
    table.put("a.png", label="cow")
    table.put("c.png", label="cow")
    merged(table)
    path.write_text(copy.replace("b.png,cat", "b.png,fox"))
    table.refresh()
    assert table.entries() == {"a.png": Entry("cow"), "b.png": Entry("fox"), "c.png": Entry("cow")}
    path.write_text("file,label\na.png,elk\nb.png,fox\nc.png,cow\n")
    assert table.entries()["a.png"] == Entry("elk")


def test_what_a_killed_server_had_confirmed_is_merged_before_a_table_is_read(tmp_path: Path) -> None:
    table = Table(tmp_path / "labels.csv", {"a.png": Entry("cat")})
    table.put("b.png", "dog", "a dog")
    assert read_labels(table.path, ["a.png", "b.png"]).labels.tolist() == [0, 1]
    assert len(rows(table.path)) == 3
    table.put("a.png", caption="a cat")
    assert read_captions(table.path).captions == (("a cat",), ("a dog",))


# --- trust


def test_a_journal_that_leads_elsewhere_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("content\n")
    (tmp_path / "labels.csv").write_text("file,label\na.png,cat\n")
    (tmp_path / "labels.csv.journal").symlink_to(tmp_path / "precious")
    table = Table(tmp_path / "labels.csv")
    assert table.entries() == {"a.png": Entry("cat")}
    with pytest.raises(ReadOnly, match="give a table elsewhere"):
        table.put("b.png", label="dog")
    assert (tmp_path / "precious").read_text() == "content\n"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_read(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("file,label\na.png,cat\n")
    tmp_path.chmod(0o500)
    try:
        table = Table(tmp_path / "labels.csv")
        assert table.entries() == {"a.png": Entry("cat")} and "give a table elsewhere" in table.read_only
    finally:
        tmp_path.chmod(0o700)


def test_a_lock_of_another_program_is_waited_for_only_so_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_table, "_WAIT", 0.2)
    table = Table(tmp_path / "labels.csv", {"a.png": Entry("cat")})
    with table.journal.open() as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        with pytest.raises(UserError, match="locked by another program"):
            table.put("b.png", label="dog")
        assert table.get("a.png") == Entry("cat"), "reading needs no lock"
        assert Table(table.path).entries() == {"a.png": Entry("cat")}, "nor does opening"


def test_a_million_rows(tmp_path: Path) -> None:
    """A tenth of it here: a label takes no longer than in an empty table."""
    path = tmp_path / "labels.csv"
    path.write_text("file,label,caption\n" + "".join(f"folder/{i}.png,class {i % 100},\n" for i in range(100_000)))
    table = Table(path)
    started = time.perf_counter()
    for i in range(20):
        table.put(f"folder/{i}.png", label="other")
    assert (time.perf_counter() - started) / 20 < 0.1
    assert table.counts()["other"] == 20 and len(table) == 100_000
    assert len(rows(merged(table))) == 100_001


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
from semisight.data.label_table import Table
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
