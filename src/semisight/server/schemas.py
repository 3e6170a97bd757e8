"""What requests and answers look like: the words of the API, as its OpenAPI page shows them."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


def _one_line(text: str) -> str:
    """As it stands in a table: without control characters, every run of white space one space."""
    return " ".join("".join(letter for letter in text if letter.isspace() or not _is_control(letter)).split())


def _is_control(letter: str) -> bool:
    return letter < " " or "\x7f" <= letter <= "\x9f"


_LETTER = r"[^\s\x00-\x1f\x7f-\x9f]"  # something to see
Label = Annotated[
    str, Field(min_length=1, max_length=200, pattern=_LETTER, examples=["cat"]), AfterValidator(_one_line)
]
Caption = Annotated[str, Field(max_length=1000, examples=["a cat on a mat"]), AfterValidator(_one_line)]
File = Annotated[str, Field(min_length=1, max_length=1000, examples=["cats/001.jpg"])]
Share = Annotated[float, Field(ge=0, le=1)]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Problem(BaseModel):
    """What is wrong, in words."""

    detail: str


class LabelOut(BaseModel):
    """A label with its probability, where that lies for nine codes of the image in ten, and the spread of the
    decision value over codes."""

    label: str
    probability: Share
    low: Share
    high: Share
    spread: float


class CaptionOut(BaseModel):
    """A caption with the probability of a word of it, on average, and where that lies for nine codes in ten."""

    text: str
    probability: Share
    low: Share
    high: Share


class NearestOut(BaseModel):
    """An image that the run learned from: 1 is the same code, 0 one at a right angle."""

    file: str
    label: str
    similarity: float


class ImageOut(BaseModel):
    name: str
    labels: list[LabelOut] = Field(description="the most probable first")
    captions: list[CaptionOut] = Field(description="the most probable first")
    seen: str | None = Field(description="the image as the model sees it: a data: address of a PNG")
    reconstruction: str | None = Field(description="what the model draws from its code: a data: address of a PNG")
    nearest: list[NearestOut]


class PredictOut(BaseModel):
    run: str
    calibrated: bool
    images: list[ImageOut]


class ReadingOut(BaseModel):
    state: Literal["reading", "encoding", "ready", "failed"]
    done: int
    total: int
    message: str


class TableOut(BaseModel):
    path: str
    images: int
    labelled: int
    captioned: int
    counts: dict[str, int] = Field(description="labelled images of each class")
    problem: str = Field(description="why nothing can be written to it, or what is wrong with it at the moment")


class LimitsOut(BaseModel):
    upload_bytes: int
    pixels: int
    images: int


class TrainingOut(BaseModel):
    state: Literal["none", "running", "loading", "done", "failed", "stopped"]
    run: str
    epoch: float
    step: int
    seconds: float
    fraction: float | None
    seconds_left: float | None
    terms: dict[str, float]
    lines: list[str]
    message: str


class StatusOut(BaseModel):
    version: str
    run: str
    step: int
    image: list[int] = Field(description="channels, height and width as the model sees images")
    classes: list[str]
    captions: bool
    advice: str = Field(description="whether the run is whole, and how far to believe the probabilities")
    waiting: int
    reading: ReadingOut
    table: TableOut | None
    limits: LimitsOut
    training: TrainingOut


class FoundOut(BaseModel):
    """An image, and the logarithm of the probability that the caption model gives the words of it."""

    file: str
    log_prob: float


class SearchOut(BaseModel):
    images: list[FoundOut] = Field(description="the best first")
    unknown: list[str] = Field(description="words that no caption of the training had; they are left out")


class SuggestionOut(BaseModel):
    file: str
    label: str
    caption: str
    guesses: list["GuessOut"]


class GuessOut(BaseModel):
    label: str
    probability: Share


class SuggestionsOut(BaseModel):
    images: list[SuggestionOut]
    classes: list[str]


class LabelIn(Strict):
    """A label, a caption, or both; what is left out stays as it is."""

    file: File
    label: Label | None = None
    caption: Caption | None = None


class FileIn(Strict):
    file: File


class EntryOut(BaseModel):
    """What the table says of an image, on disk."""

    file: str
    label: str
    caption: str
    labelled: int


class TrainingIn(Strict):
    minutes: Annotated[float, Field(gt=0, le=10_000)] | None = None


class SessionIn(Strict):
    token: Annotated[str, Field(max_length=1000)]


class Health(BaseModel):
    """alive: the process answers. ready: it can be sent work; `images` says how far those of the run are read."""

    ready: bool
    images: Literal["reading", "encoding", "ready", "failed"]


class Done(BaseModel):
    done: bool = True
