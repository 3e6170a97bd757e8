"""Reference [8] and section 5.1: Gibbs sampling of the full posterior, on the library's own decoder and label head.

    s_n           ~ N(0, I)
    z_n(l)        ~ uniform over the places of its block
    D, image bias, alpha0                                 priors in parameters.py
    X_n           ~ N(picture(s_n, z_n; D) + image bias, 1/alpha0)
    beta_c, bias_c ~ N(0, I/precision);   y_nc, lambda_nc | s_n     (28), where image n has a label

One sweep draws, each given everything else: z of every layer and s, image by image (latents.py); D layer by layer,
image bias, alpha0 (parameters.py); lambda and beta (BayesianSVM.gibbs_step). Every conditional is exact.

The weight xi that learning puts on labels raises the pseudo-likelihood (9) to a power, which is a head with gamma times
xi.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from semisight.errors import UserError
from semisight.model.posterior import flat_code
from semisight.sampling.chain import Chain, check_counts
from semisight.sampling.dictionaries import Completed
from semisight.sampling.latents import (
    SweepOptions,
    slices,
    sweep_latents,
)
from semisight.sampling.parameter_samples import ParameterSamples
from semisight.sampling.parameters import Priors, draw_parameters


@dataclass(frozen=True)
class GibbsConfig:
    """Section 5.1: 50 samples of the parameters after 1000 sweeps of burn-in."""

    burn_in: int = 1000
    n_samples: int = 50
    every: int = 1  # sweeps from one kept sample to the next
    beta_steps: int = 1  # draws of lambda and beta in a sweep: beta moves slowly, and a draw is cheap beside the rest
    seed: int = 0
    priors: Priors = field(default_factory=Priors)
    options: SweepOptions = field(default_factory=SweepOptions)

    def __post_init__(self) -> None:
        check_counts(self.burn_in, self.n_samples)
        if self.every < 1:
            raise UserError(f"every must be at least 1 sweep, not {self.every}")
        if self.beta_steps < 1:
            raise UserError(f"a sweep draws beta at least once, not {self.beta_steps} times")

    @property
    def n_sweeps(self) -> int:
        return self.burn_in + self.n_samples * self.every


@dataclass(frozen=True)
class Sweep:
    """What the progress callback is told."""

    number: int  # sweeps done
    total: int
    kept: int
    alpha0: float
    mean_square: float  # of the residual, per pixel


class GibbsChain(Chain):
    """The state of a chain: latent variables, lambda, parameters, random numbers; `sweep` moves it."""

    kind = "gibbs"
    config: GibbsConfig

    def _begin(self) -> None:
        self.lam = self.draw_lambda(slice(None), self.latents.codes)
        self._sum_of_s = torch.zeros_like(self.latents.s)  # over the kept samples

    def keep(self) -> None:
        super().keep()
        self._sum_of_s += self.latents.s

    @property
    def mean_codes(self) -> Tensor:
        """The running mean of every image's code over the kept samples, [N, J]."""
        return flat_code(self._sum_of_s / max(1, len(self.kept)))

    def sweep(self) -> float:
        """Every variable once; returns the mean square of the residual."""
        started = time.monotonic()
        alpha0 = self.decoder.log_alpha0.detach().exp()
        for n in slices(len(self.latents), self.config.options.batch_size):
            x, rows = self.x[..., n].contiguous(), self.latents.rows(n)
            prior = self.code_prior(n, x.shape[-1], None if self.lam is None else self.lam[n])
            sweep_latents(self.decoder, x, rows, prior, alpha0, self.generator, self.config.options)
        priors, share = self.config.priors, self.config.options.share_above
        mean_square = draw_parameters(self.decoder, self._completed, priors, self.generator, share)
        if self.head is not None and self.labels is not None:
            codes = self.latents.codes
            for _ in range(self.config.beta_steps):
                self.lam = self.head.gibbs_step(self.labels, codes, self.generator)
        self.number += 1
        self.seconds += time.monotonic() - started
        return mean_square

    def run(
        self,
        progress: Callable[[Sweep], None] | None = None,
        save_to: str | Path | None = None,
        save_every: int = 10,
    ) -> ParameterSamples:
        """Sweeps on until the configured number of samples is kept; a resumed chain goes on from where it was."""
        config = self.config
        while self.number < config.n_sweeps:
            mean_square = self.sweep()
            after = self.number - config.burn_in
            if after > 0 and after % config.every == 0:
                self.keep()
            if save_to is not None and (self.number % save_every == 0 or self.number == config.n_sweeps):
                self.save(save_to)
            if progress is not None:
                alpha0 = float(self.decoder.log_alpha0.detach().exp())
                progress(Sweep(self.number, config.n_sweeps, len(self.kept), alpha0, mean_square))
        return self.samples()

    def save(self, path: str | Path) -> None:
        """Everything the chain is, in one file."""
        self._write(path, {"sum_of_s": self._sum_of_s, **({} if self.lam is None else {"lambda": self.lam})})

    def resume(self, path: str | Path) -> None:
        """Goes back to where a chain with the same data and settings was saved; it goes on bit for bit."""
        tensors = self._read(path)
        if self.lam is not None:
            self.lam = tensors["lambda"].to(self.x.device)
        if "sum_of_s" in tensors:  # chains that were saved before means were kept have none
            self._sum_of_s = tensors["sum_of_s"].to(self.x.device)

    def _settings(self) -> dict[str, Any]:
        """How many samples are wanted may change."""
        return {k: v for k, v in asdict(self.config).items() if k != "n_samples"}

    def _completed(self) -> Iterator[Completed]:
        for n in slices(len(self.latents), self.config.options.batch_size):
            rows = self.latents.rows(n)
            yield Completed(self.x[..., n].contiguous(), rows.s.contiguous(), rows.places)
