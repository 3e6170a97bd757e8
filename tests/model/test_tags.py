"""Several labels per image: each tag's likelihood, unknown entries, closed forms, and the head's own probabilities."""

import pytest
import torch

from semisight.model.heads.tags import TagHead, TagKind, pick_tags

KINDS: tuple[TagKind, ...] = ("svm", "logistic")


def head_of(kind: TagKind, gamma: float = 0.7) -> TagHead:
    head = TagHead(5, 3, kind, gamma).double()
    torch.nn.init.normal_(head.scores.beta, generator=torch.Generator().manual_seed(0))
    torch.nn.init.normal_(head.scores.bias, generator=torch.Generator().manual_seed(1))  # type: ignore[arg-type]
    return head


def codes(n: int = 4) -> torch.Tensor:
    return torch.randn(n, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("kind", KINDS)
def test_log_p_is_the_sum_over_known_tags(kind: TagKind) -> None:
    head, s = head_of(kind), codes(1)
    f = (s @ head.scores.beta + head.scores.bias)[0]
    y = torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64)  # has it, has it not, has it
    each = -2 * 0.7 * (1 - y * f).clamp_min(0) if kind == "svm" else torch.sigmoid(y * f).log()
    values = torch.tensor([[1, 0, 1]], dtype=torch.int8)
    torch.testing.assert_close(head.log_prob(values, s)[0], each.sum())
    values = torch.tensor([[1, -1, 1]], dtype=torch.int8)
    torch.testing.assert_close(head.log_prob(values, s)[0], each[0] + each[2])


@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_entry_contributes_exactly_nothing(kind: TagKind) -> None:
    head, s = head_of(kind), codes().requires_grad_()
    values = torch.full((4, 3), -1, dtype=torch.int8)
    values[0, 1] = 0
    log_p = head.log_prob(values, s)
    assert bool((log_p[1:] == 0).all()) and float(log_p[0]) != 0
    log_p.sum().backward()
    assert s.grad is not None and head.scores.beta.grad is not None
    assert bool((s.grad[1:] == 0).all())
    assert [bool((g != 0).any()) for g in head.scores.beta.grad.T] == [False, True, False]
    each = torch.arange(3.0)[None]
    picked = pick_tags(torch.tensor([[1, 0, -1]]), each, each + 10)
    assert picked.tolist() == [[0.0, 11.0, 0.0]]


@pytest.mark.parametrize("kind", KINDS)
def test_the_mean_over_codes_in_closed_form(kind: TagKind) -> None:
    """Exact for the SVM, a lower bound for the logistic that is exact without spread."""
    head, mu = head_of(kind), codes()
    log_sigma = torch.full_like(mu, -0.5)
    eps = torch.randn(40_000, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    drawn = head.log_prob_each((mu + log_sigma.exp() * eps).flatten(0, 1))
    for closed, of_codes in zip(head.expected_log_prob_each(mu, log_sigma), drawn, strict=True):
        mean = of_codes.view(40_000, 4, 3).mean(0)
        if kind == "svm":
            torch.testing.assert_close(closed, mean, atol=0.05, rtol=0)
        else:
            assert bool((closed < mean).all())
    for closed, at_mean in zip(
        head.expected_log_prob_each(mu, torch.full_like(mu, -12.0)), head.log_prob_each(mu), strict=True
    ):
        torch.testing.assert_close(closed, at_mean, atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_the_head_s_own_probability(kind: TagKind) -> None:
    head = head_of(kind)
    f = torch.linspace(-0.99, 0.99, 7, dtype=torch.float64)
    if kind == "svm":
        has, has_not = -2 * 0.7 * (1 - f), -2 * 0.7 * (1 + f)
        torch.testing.assert_close(head.probability(f), torch.stack([has, has_not]).softmax(0)[0])
    else:
        torch.testing.assert_close(head.probability(f), torch.sigmoid(f))
    s, log_sigma = codes(), torch.full((4, 5), -0.5, dtype=torch.float64)
    eps = torch.randn(20_000, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    drawn = head.decision(s + log_sigma.exp() * eps)
    torch.testing.assert_close(head.spread(s, log_sigma), drawn.std(0), rtol=0.03, atol=0)
    torch.testing.assert_close(head.decision(s), drawn.mean(0), atol=0.05, rtol=0)


@pytest.mark.parametrize("wrong", [{"n_tags": 0}, {"n_tags": 2, "kind": "tree"}])
def test_heads_that_cannot_be_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="tag"):
        TagHead(5, **wrong)  # type: ignore[arg-type]
