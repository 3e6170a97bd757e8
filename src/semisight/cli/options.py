"""The options of the command line, declared once: the same word means the same thing in every command.

An option without a value of its own is None: a setting that was not given may still come from a file or from the run
that is resumed. Its default, which is the library's, is said in the help (and held to the library's by a test).
"""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

_IMAGES, _LABELS, _CAPTIONS, _MODEL, _LEARNING, _MACHINE, _RUN = (
    *("Images", "Labels", "Captions", "Model", "Learning", "Machine", "Run folder"),
)


def _option(*names: str, help: str, panel: str | None = None, default: str | bool = False, **more: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=panel, show_default=default, **more)


# --- of every command that uses a run

RunArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="A folder that [bold]semisight train --out[/] made.", show_default=False)
]
ImagesArgument = Annotated[
    str, typer.Argument(metavar="IMAGES", help="Anything that train takes as DATA.", show_default=False)
]
Overwrite = Annotated[bool, _option("--overwrite", help="Replace what is there.")]
FixedSeed = Annotated[int, _option(min=0, help="The same seed gives the same result.", default=True)]
FixedDevice = Annotated[str, _option(help="auto, cpu, cuda, cuda:1 or mps.", default=True)]
WhichCheckpoint = Annotated[
    Literal["auto", "best", "newest"],
    _option("--checkpoint", help="auto: the best, or the newest if there is no best.", default=True),
]
FolderOrGrid = Annotated[
    Path, _option(help="A picture's name (.png, .jpg, .webp) for a grid, or a folder for a PNG each.")
]

TextFile = Annotated[Path | None, _option("--out", help="A file to write to.", default="the screen")]
SomeImages = Annotated[int | None, _option("--limit", min=1, help="At most so many images.", default="all")]

# --- of labels

LabelFile = Annotated[
    str | None,
    _option(
        "--labels",
        help="A CSV file with the columns file,label, or a .npy array of one label for each image (-1: unknown). "
        "Images that it leaves out are unlabelled.",
        panel=_LABELS,
        default="those that the set carries, if any",
    ),
]
ClassPerFolder = Annotated[
    bool | None,
    _option("--class-per-folder", help="The folders directly below DATA are the classes.", panel=_LABELS),
]
NoLabels = Annotated[
    bool,
    _option("--no-labels", help="Learn from the images alone, even if the set carries labels.", panel=_LABELS),
]
LabelsPerClass = Annotated[
    int | None,
    _option(
        help="Keep so many labels of each class and hide the others, to try out how few are enough; "
        "the error is measured on hidden ones.",
        panel=_LABELS,
        default="all",
    ),
]
OnlyLabelled = Annotated[
    bool | None,
    _option("--only-labelled", help="Leave out unlabelled images, to see what they are worth.", panel=_LABELS),
]
Head = Annotated[
    Literal["softmax", "svm"] | None,
    _option(help="What tells classes apart: softmax, or the Bayesian SVM.", panel=_LABELS, default="softmax"),
]
Xi = Annotated[
    str | None,
    _option(
        help="Weight of the labels beside the images: a number, paper (N_X / (C rho)), pixels (C times that) or "
        "tenfold and hundredfold (ten and a hundred times that again).",
        panel=_LABELS,
        default="tenfold",
    ),
]
Pull = Annotated[
    bool | None,
    _option(
        "--pull/--no-pull",
        help="Whether unlabelled images pull on the labels: what the model believes of them is learned on moved "
        "images, codes of moved images agree, and probable labels spread over a graph of codes.",
        panel=_LABELS,
        default="pull",
    ),
]
LabelMoves = Annotated[
    str | None,
    _option(
        "--moves",
        help="How images are moved to learn more from each: photos (a little, and mirrored), drawings (further, never "
        "mirrored: also for writing and signs), or auto (images in colour are taken for photos).",
        panel=_LABELS,
        default="auto",
    ),
]
Paper = Annotated[
    bool | None,
    _option(
        "--paper",
        help="The paper's settings: svm, xi paper, no pull, no nonlinearity, rate 0.0002, batches of 32 labelled and "
        "32 others.",
        panel=_LABELS,
    ),
]

# --- of captions

CaptionFile = Annotated[
    str | None,
    _option(
        "--captions",
        help="Karpathy's or COCO's json, a Flickr token file, CSV (columns file,caption) or JSON lines; builtin: those "
        "that the set carries. Images that it leaves out are uncaptioned: they pull with words the model is sure of. "
        "Other defaults then, unless --paper: normalised maps and ReLU, a rate of 0.001 that falls, averaged weights.",
        panel=_CAPTIONS,
    ),
]
Split = Annotated[
    str | None,
    _option(
        help="Which part of a caption file that parts its images: train, val, ..., or all.",
        panel=_CAPTIONS,
        default="train and restval; evaluate: test, or val",
    ),
]
CaptionedImages = Annotated[
    int | None,
    _option(
        help="Keep the captions of so many images and hide the others', to try out how few are enough; "
        "captions are measured on hidden ones.",
        panel=_CAPTIONS,
        default="all",
    ),
]
OnlyCaptioned = Annotated[
    bool | None,
    _option("--only-captioned", help="Leave out uncaptioned images, to see what they are worth.", panel=_CAPTIONS),
]
TwoStep = Annotated[
    str | None,
    _option(
        "--two-step",
        metavar="RUN",
        help="Take the image model of this run, leave it as it is, and learn the captions on its codes.",
        panel=_CAPTIONS,
        default="images and captions together",
    ),
]
Cell = Annotated[
    Literal["gru", "lstm"] | None,
    _option(help="The recurrent network that writes captions.", panel=_CAPTIONS, default="gru"),
]
HiddenSize = Annotated[
    int | None,
    _option(help="Its hidden units.", panel=_CAPTIONS, default="512; with fewer than 5,000 captions 256"),
]
MinCount = Annotated[
    int | None,
    _option(
        help="Words that occur less often are one unknown word.",
        panel=_CAPTIONS,
        default="5; with fewer than 5,000 captions 1",
    ),
]
CaptionXi = Annotated[
    float | None,
    _option(
        help="Weight of log p(caption) beside the image's bound; 1 is the exact bound.",
        panel=_CAPTIONS,
        default="N_X / (T rho)",
    ),
]
NumberOfCodes = Annotated[
    int, _option("--codes", min=1, max=1000, help="Codes of each image that captions are averaged over.", default=True)
]
Beam = Annotated[int, _option(min=1, max=100, help="Width of the search for captions.", default=True)]
MaxWords = Annotated[int, _option(min=1, max=1000, help="A caption has at most so many words.", default=True)]

# --- of train

DataArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="DATA",
        help="A folder of images, an image, .npz, .npy, MNIST or CIFAR files, builtin:digits or builtin:scenes. "
        "With --resume it may be left out.",
        show_default=False,
    ),
]

Out = Annotated[Path | None, _option(help="The folder to write the run to. Required.", panel=_RUN)]
Resume = Annotated[
    bool, _option("--resume", help="Go on where the run in --out stopped, with its settings.", panel=_RUN)
]
ReplaceRun = Annotated[bool, _option("--overwrite", help="Replace the run in --out.", panel=_RUN)]
WriteReport = Annotated[bool, _option(help="Write RUN/report.html at the end.", panel=_RUN, default=True)]
Config = Annotated[
    Path | None,
    _option(
        help="Settings from a YAML or JSON file, by the names of these options, which win over it. "
        "The config.json of a run works too.",
        panel=_RUN,
    ),
]

Size = Annotated[
    int | None, _option(help="Scale and crop to SIZE x SIZE pixels.", panel=_IMAGES, default="as they are")
]
Channels = Annotated[int | None, _option(help="1 (grey) or 3 (colour).", panel=_IMAGES, default="as they are")]
Limit = Annotated[int | None, _option(help="Use at most so many images.", panel=_IMAGES, default="all")]
ValidFraction = Annotated[
    float | None, _option(help="Share set aside for validation; 0 for none.", panel=_IMAGES, default="0.1")
]

Preset = Annotated[
    str | None,
    _option(
        help="Layers of the paper's Table 5: mnist, cifar-10, cifar-100, caltech-101, caltech-256, imagenet, "
        "flickr8k, flickr30k, coco.",
        panel=_MODEL,
        default="suits the size of the images",
    ),
]
Pooling = Annotated[
    Literal["expected", "sampled", "max"] | None,
    _option(
        help="How the code sees the places z: their mean, a draw (the paper's), or max-pooling without z.",
        panel=_MODEL,
        default="expected",
    ),
]
Nonlinearity = Annotated[
    Literal["none", "relu", "norm-relu"] | None,
    _option(help="After pooling, in the encoder.", panel=_MODEL, default="none; with labels: norm-relu"),
]
Gradient = Annotated[
    Literal["local", "straight-through", "nvil"] | None,
    _option(help="How the gradient for z is estimated.", panel=_MODEL, default="local"),
]

# With labels other defaults hold (LABEL_DEFAULTS in settings.py).
Epochs = Annotated[
    int | None,
    _option(help="At most so many passes over the images.", panel=_LEARNING, default="100; with labels: 20 or more"),
]
Minutes = Annotated[
    float | None, _option(help="At most so long, resumptions included.", panel=_LEARNING, default="no limit")
]
BatchSize = Annotated[
    int | None,
    _option(help="Images per step.", panel=_LEARNING, default="64; with labels: 288, or 128 if many"),
]
LearningRate = Annotated[float | None, _option(help="Of Adam.", panel=_LEARNING, default="0.0002; with labels: 0.001")]
Schedule = Annotated[
    Literal["constant", "cosine"] | None,
    _option(help="Of the learning rate.", panel=_LEARNING, default="constant; with labels: cosine"),
]
Average = Annotated[
    float | None,
    _option(
        help="Average the weights over steps: 0.999 remembers about 1000.",
        panel=_LEARNING,
        default="off; with labels: 0.99",
    ),
]
Seed = Annotated[int | None, _option(help="The same seed gives the same run.", panel=_LEARNING, default="0")]

Device = Annotated[str | None, _option(help="auto, cpu, cuda, cuda:1 or mps.", panel=_MACHINE, default="auto")]
Precision = Annotated[
    Literal["auto", "32", "bf16", "64"] | None, _option(help="Of numbers, in bits.", panel=_MACHINE, default="auto")
]
Threads = Annotated[
    int | None, _option(help="CPU threads; 1 is best on a busy machine.", panel=_MACHINE, default="torch's choice")
]
