"""What a training starts from, in lines for people: images, labels, layers."""

from semisight.data.image_set import skipped_summary
from semisight.model.architecture import Architecture
from semisight.runs.images import Sets
from semisight.runs.settings import DataSettings, Settings
from semisight.training.config import TrainConfig


def describe_data(sets: Sets, source: str) -> list[str]:
    train, valid = sets.train, sets.valid
    channels, height, width = train.shape
    colour = {1: "grey", 3: "colour"}.get(channels, f"{channels}-channel")
    n_valid = 0 if valid is None else len(valid)
    aside = f"; {n_valid:,} are set aside for validation" if n_valid else "; none are set aside for validation"
    lines = [f"{len(train) + n_valid:,} {colour} images of {width} x {height} pixels from {source}{aside}"]
    if train.skipped:
        lines.append(skipped_summary(train.skipped))
    return lines + [f"note: {note}" for note in train.notes]


def describe_labels(sets: Sets, settings: Settings) -> list[str]:
    """Which labels are used, and how."""
    if not sets.has_labels:
        return ["labels: none; learning from the images alone"]
    train, n_unlabelled = settings.train, len(sets.train) - sets.n_labelled
    held_out = sets.n_held_out("labels")
    n = sets.n_labelled + held_out
    lines = [f"labels: {n:,} images of {len(sets.train.class_names)} classes ({_origin(settings.data)})"]
    if held_out:
        lines.append(f"  {held_out:,} are held out, to choose the weights and to calibrate probabilities")
    else:
        why = "none are held out" if settings.data.valid_fraction == 0 else "too few to hold some out"
        last = "last weights" if train.average_decay is None else "last averaged weights"
        lines.append(f"  {why}: the {last} are used, and probabilities are not calibrated")
    how = "pull on the labels" if settings.labels.pull else "learn only to be drawn (no pull)"
    pulled = f"{n_unlabelled:,} images without a label {how}; " if n_unlabelled else "every image has a label; "
    return [*lines, f"  {pulled}batches of {train.batch_size}, {_length(train)}"]


def describe_captions(sets: Sets, settings: Settings, vocab_size: int) -> list[str]:
    """Which captions are used, and how."""
    data, train, how = settings.data, settings.train, settings.captions
    origin = "carried by the set" if data.captions == "builtin" else f"from {data.captions}"
    hidden = "" if data.captioned_images is None else f"; those of all but {data.captioned_images:,} images hidden"
    n_others = len(sets.train) - sets.n_captioned
    lines = [
        f"captions: {sets.n_captions:,} of {sets.n_captioned:,} images to learn from ({origin}{hidden}); "
        f"a vocabulary of {vocab_size:,} symbols"
    ]
    if sets.n_captioned_held_out:
        lines.append(f"  those of {sets.n_captioned_held_out:,} images are held out, to choose the weights")
    else:
        lines.append("  none are held out: the last weights are used")
    if how.two_step:
        what = "the image model stays as it is (two-step); images without a caption are not used"
    elif n_others:
        what = f"{n_others:,} images without a caption are learned from, too"
    else:
        what = "every image has a caption"
    return [*lines, f"  {what}; batches of {train.batch_size}, {_length(train)}"]


def _origin(data: DataSettings) -> str:
    if data.labels is not None:
        origin = f"from {data.labels}"
    elif data.class_per_folder:
        origin = "a class per folder"
    else:
        origin = "carried by the set; --no-labels leaves them out"
    return origin if data.labels_per_class is None else f"{origin}; all but {data.labels_per_class} per class hidden"


def _length(train: TrainConfig) -> str:
    limits = [
        (train.max_epochs, f"{train.max_epochs} epochs"),
        (train.max_steps, f"{train.max_steps} steps"),
        (train.max_minutes, f"{train.max_minutes} minutes"),
    ]
    return "at most " + " or ".join(words for limit, words in limits if limit is not None)


def describe_architecture(architecture: Architecture) -> list[str]:
    def one(number: int) -> str:
        layer = architecture.layers[number]
        pooled = f", pooled by {layer.pool} x {layer.pool}" if layer.pool > 1 else ""
        return f"{layer.maps} maps of {layer.kernel} x {layer.kernel}{pooled}"

    layers = "; ".join(one(number) for number in range(len(architecture.layers)))
    return [f"{len(architecture.layers)} layers: {layers}; an image becomes {architecture.code_size} numbers"]
