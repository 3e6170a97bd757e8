"""Asking a network that is in the middle of its training: without dropout, with the running statistics."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """In eval mode inside the block, and as it was afterwards, whatever happened."""
    was_training = network.training
    network.eval()
    try:
        yield
    finally:
        network.train(was_training)
