"""Words as the public metrics split them, and the vocabulary made of them."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semisight.data.tokenizer import readable, tokenize
from semisight.data.vocabulary import END, MAX_WORDS, PADDING, UNKNOWN, Vocabulary
from semisight.errors import UserError

# What the public tokeniser makes of these was recorded; a test below asks it again where it is installed.
KNOWN = {
    "A man's dog isn't here; \"can't\" cannot gonna.": "a man 's dog is n't here ca n't can not gon na",
    "Two dogs (one black) run, and play.": "two dogs -lrb- one black -rrb- run and play",
    "The boys' ball, the girl's bat - and 'a hat'": "the boys ball the girl 's bat and a hat",
    "He wears a t-shirt at 5:30 p.m. on St. John's Ave.": "he wears a t-shirt at 5:30 p.m. on st. john 's ave.",
    "the U.S. flag, Mr. Smith vs. Dr. No etc.": "the u.s. flag mr. smith vs. dr. no etc.",
    "1,000 people; 3.5 miles, 1/2 price, 50% off $5.00 #1": "1,000 people 3.5 miles 1/2 price 50 % off $ 5.00 # 1",
    "a black/white cat and/or dog w/ a 4x4, 3rd St.": "a black/white cat and/or dog w / a 4x4 3rd st.",
    "rock 'n' roll in the '80s at 10 o'clock, y'all": "rock 'n' roll in the '80s at 10 o'clock y' all",
    "It’s a dog’s life – “really” … don’t you’d": "it 's a dog 's life really do n't you 'd",
    "Wow!!! A dog?! Really... yes--no": "wow !!! a dog ?! really yes no",
    "AT&T, R&B and a&b at the car wash.": "at&t r&b and a & b at the car wash",
    "café naïve Ünï 日本語の犬、собака बिल्ली": "café naïve ünï 日本語の犬 、 собака बिल्ली",
    "a dog 🐶🐶 and a ball⚽ 😀": "a dog and a ball ⚽",
    "No. 5 jersey. The man said no.": "no. 5 jersey the man said no",
    "Shirt with letter A. Then letter B. and j": "shirt with letter a then letter b. and j",
    "grass.The dog runs,jumps": "grass.the dog runs jumps",
    "tabs\tand  spaces\nand lines \u00a0": "tabs and spaces and lines",
    "&quot;fish &amp; chips&quot;": "fish & chips",
    "£5 or €6, ½ a pie": "# 5 or $ 6 1/2 a pie",
    "": "",
    " . , ! 😀 '' -- ": "",
}


@pytest.mark.parametrize("caption", KNOWN)
def test_tokens(caption: str) -> None:
    assert " ".join(tokenize(caption)) == KNOWN[caption]


def public_tokens(captions: list[str]) -> list[list[str]]:
    """The public tokeniser, all captions at once, a plain line between them because it looks at the next one."""
    module = pytest.importorskip("pycocoevalcap.tokenizer.ptbtokenizer")
    folder = Path(module.__file__).parent
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "captions"
        file.write_text("\nplain\n".join(c.replace("\n", " ") for c in captions) + "\n", encoding="utf-8")
        command = ["java", "-cp", module.STANFORD_CORENLP_3_4_1_JAR, "edu.stanford.nlp.process.PTBTokenizer"]
        command += ["-preserveLines", "-lowerCase", str(file)]
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, check=True, timeout=60)
        except FileNotFoundError:
            pytest.skip("needs Java")
    lines = done.stdout.decode("utf-8").split("\n")[: 2 * len(captions) : 2]
    return [[w for w in line.rstrip().split(" ") if w and w not in module.PUNCTUATIONS] for line in lines]


def differences(captions: list[str]) -> list[tuple[str, list[str], list[str]]]:
    public = public_tokens(captions)
    pairs = ((c, list(tokenize(c)), p) for c, p in zip(captions, public, strict=True))
    return [(caption, ours, theirs) for caption, ours, theirs in pairs if ours != theirs]


def test_tokens_equal_the_public_tokeniser_on_shipped_captions() -> None:
    assert differences(list(KNOWN)) == []


def test_tokens_equal_the_public_tokeniser_on_flickr8k(data_root: Path) -> None:
    path = data_root / "flickr8k" / "dataset_flickr8k.json"
    if not path.exists():
        pytest.skip(f"needs {path}")
    captions = [s["raw"] for image in json.loads(path.read_text())["images"] for s in image["sentences"]]
    assert len(captions) > 30_000
    assert differences(captions) == []
    # Flickr8k's captions come with spaces before their punctuation; as people write them they are harder.
    closed = [
        c.replace(" .", ".").replace(" ,", ",").replace(" '", "'").replace("( ", "(").replace(" )", ")")
        for c in captions
    ]
    assert differences(closed) == []


@given(st.text())
def test_any_text_gives_words_without_spaces(text: str) -> None:
    words = tokenize(text)
    assert all(word and word == word.lower() for word in words)
    assert all(not word.isspace() for word in words)


@given(st.lists(st.sampled_from(["a", "dog", "runs", "t-shirt", "in", "café", "犬"]), min_size=1).map(" ".join))
def test_plain_words_are_kept_as_they_are(text: str) -> None:
    assert " ".join(tokenize(text)) == text
    assert tokenize(text.upper()) == tokenize(text)


def test_a_huge_caption_takes_no_huge_time() -> None:
    assert len(tokenize("word's, " * 10_000)) == 20_000
    assert tokenize("'" * 20_000 + "." * 20_000) == ()
    assert len(tokenize("a" * 20_000)) == 1
    assert len(tokenize("a-" * 5_000)) == 1
    assert len(tokenize("a." * 5_000)) >= 1


@pytest.mark.parametrize(
    "text", ["a man's dog is here", "he doesn't see (the red) ball", "they're in it, we've we'd i'm"]
)
def test_readable_undoes_the_splitting(text: str) -> None:
    assert readable(tokenize(text)) == text.replace(",", "")


CAPTIONS = ["A dog runs.", "A dog's ball", "The dog runs <end>", "a cat"]


def test_counts_order_and_symbols() -> None:
    vocabulary = Vocabulary.from_captions(CAPTIONS, min_count=2)
    assert vocabulary.words == ("<end>", "<unknown>", "a", "dog", "runs")
    assert vocabulary.symbols("A dog sleeps") == [2, 3, UNKNOWN, END]
    assert len(Vocabulary.from_captions(CAPTIONS, min_count=1)) == 2 + 8  # "<end>" as a word is one of them


def test_a_caption_with_the_text_of_the_end_does_not_end() -> None:
    vocabulary = Vocabulary.from_captions(CAPTIONS, min_count=1)
    symbols = vocabulary.symbols("the dog runs <end> a cat")
    assert symbols.count(END) == 1 and symbols[-1] == END
    assert vocabulary.tokens(symbols) == ("the", "dog", "runs", "<end>", "a", "cat")


def test_encoding_pads_and_missing_captions_are_rows_of_padding() -> None:
    vocabulary = Vocabulary.from_captions(CAPTIONS, min_count=1)
    encoded = vocabulary.encode(["a dog", None, "😀", "a dog runs"])
    a, dog, runs = (vocabulary.words.index(w) for w in ("a", "dog", "runs"))
    p = PADDING
    assert encoded.tolist() == [[a, dog, END, p], [p] * 4, [p] * 4, [a, dog, runs, END]]
    assert vocabulary.encode([]).shape == (0, 0)
    assert vocabulary.text(encoded[3]) == "a dog runs"
    assert vocabulary.text(encoded[1]) == ""


def test_a_caption_of_10_000_words_is_cut_and_does_not_end() -> None:
    vocabulary = Vocabulary.from_captions(["a dog"], min_count=1)
    encoded = vocabulary.encode(["dog " * 10_000, "dog " * MAX_WORDS])
    assert encoded.shape == (2, MAX_WORDS + 1)
    assert encoded[0, -1] == PADDING and encoded[1, -1] == END


def test_decoded_text_is_readable() -> None:
    vocabulary = Vocabulary.from_captions(["A man's dog isn't (very) old"], min_count=1)
    assert vocabulary.text(vocabulary.encode(["A man's dog isn't (very) old"])[0]) == "a man's dog isn't (very) old"


def test_saved_and_loaded(tmp_path: Path) -> None:
    vocabulary = Vocabulary.from_captions([*CAPTIONS, "日本語 café"], min_count=1)
    vocabulary.save(tmp_path / "vocabulary.json")
    assert Vocabulary.load(tmp_path / "vocabulary.json") == vocabulary
    assert "日本語" in (tmp_path / "vocabulary.json").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "content",
    [
        *("", "[]", "{}", '{"format": "other 3"}', '{"format": "semisight voc'),
        '{"format": "semisight vocabulary 1", "min_count": 1, "words": [1, 2]}',
        '{"format": "semisight vocabulary 1", "min_count": 1, "words": ["a", "a"]}',
    ],
)
def test_a_file_that_is_no_vocabulary(tmp_path: Path, content: str) -> None:
    file = tmp_path / "vocabulary.json"
    file.write_text(content)
    with pytest.raises(UserError, match=r"vocabulary\.json"):
        Vocabulary.load(file)


def test_vocabularies_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="could not read"):
        Vocabulary.load(tmp_path / "nothing.json")
    with pytest.raises(UserError, match="no words"):
        Vocabulary.from_captions(["😀", "..."])
    with pytest.raises(UserError, match="at most 2"):
        Vocabulary.from_captions(["a dog", "a cat"], min_count=5)
    with pytest.raises(UserError, match="1 or more"):
        Vocabulary.from_captions(["a dog"], min_count=0)


def test_the_tokeniser_needs_no_torch() -> None:
    code = "import sys, semisight.data.tokenizer; sys.exit('torch' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0
