"""What a row of a table may take."""

from dataclasses import dataclass
from typing import Any

from semisight.training.config import TrainConfig


@dataclass(frozen=True)
class Limits:
    minutes: float
    threads: int
    progress: bool
    smoke: bool

    def training(self, **settings: Any) -> TrainConfig:
        """Of a row that trains to the end of its epochs, on these threads and as quiet as asked."""
        return TrainConfig(
            patience=None,
            validation_batch_size=500,
            threads=self.threads,
            keep_memory=True,
            progress=self.progress,
            tensorboard=False,
            **settings,
        )
