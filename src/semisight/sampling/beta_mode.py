"""The M-step of beta: the mode of (9) under beta's prior for given codes, by liblinear.

Without lambda, log p(y | s, beta) + log p(beta) is a linear SVM with a squared norm, class by class. The steps of
(31)-(35), each a ridge regression given E[1/lambda], climb to the same place, but after sixty of them 20,000 codes of
MNIST are still 180 nats below it, in fifty times the time.
"""

import warnings

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import LinearSVC
from torch import Tensor

from semisight.model.heads.labels import BayesianSVM

_MOST_ROUNDS = 10_000
_NEXT_TO_NOTHING = 1e-9  # weight of two images without a code: a class may have no image, or no image a label


@torch.no_grad()
def maximise_beta(head: BayesianSVM, labels: Tensor, codes: Tensor, weight: Tensor, seed: int = 0) -> None:
    """For codes [N, J], labels [N] with -1 for none, and how often each image counts, [N]; never lowers the value."""
    known = labels >= 0
    nowhere, share = codes.new_zeros(2, codes.shape[1]), weight.new_full((2,), _NEXT_TO_NOTHING)
    inputs = torch.cat([codes[known], nowhere]).double().cpu().numpy()
    weights = torch.cat([weight[known], share]).double().cpu().numpy()
    before = _value(head, labels, codes, weight)
    old = {name: value.clone() for name, value in head.scores.state_dict().items()}
    for c in range(head.n_classes):
        signs = torch.cat([2 * (labels[known] == c).long() - 1, labels.new_tensor([-1, 1])])
        svm = LinearSVC(
            loss="hinge",
            C=2 * float(head.gamma[c]) / head.precision,
            fit_intercept=head.scores.bias is not None,
            tol=1e-3,
            max_iter=_MOST_ROUNDS,
            random_state=seed,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # a step that only climbs is an M-step too
            svm.fit(inputs, signs.cpu().numpy(), weights * np.where(signs.cpu().numpy() > 0, 1.0, head.others))
        head.scores.beta[:, c] = torch.from_numpy(svm.coef_[0]).to(codes)
        if head.scores.bias is not None:
            head.scores.bias[c] = float(svm.intercept_[0])
    if _value(head, labels, codes, weight) < before:
        head.scores.load_state_dict(old)


def _value(head: BayesianSVM, labels: Tensor, codes: Tensor, weight: Tensor) -> float:
    return float((weight * head.log_prob(labels, codes)).sum() + head.log_prior(1))
