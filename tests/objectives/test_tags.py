"""Tags as a target: unknown entries, the prior, and pseudo-tags one by one."""

import pytest
import torch

from semisight.errors import UserError
from semisight.model.heads.tags import TagHead
from semisight.objectives.joint import Joint
from semisight.objectives.tags import Tags
from tests.objectives.cases import ALL, PIXELS, J, N, model_with, only, step

VALUES = torch.where(torch.arange(N)[:, None] < 6, torch.tensor([[1, 0, -1, 1]]), -1)


def tags_of(values: torch.Tensor = VALUES, threshold: float = 0.9) -> Tags:
    head = TagHead(J, 4, "logistic")
    torch.nn.init.normal_(head.scores.beta, generator=torch.Generator().manual_seed(0))
    return Tags(head, values, threshold=threshold)


def test_entries_that_are_not_known_count_for_nothing() -> None:
    """Neither as 0 nor as 1: a column of which nothing is known gets no gradient but the prior's."""
    tags, code = tags_of(), torch.randn(N, J, generator=torch.Generator().manual_seed(0))
    side = tags.side(tags.rows(torch.arange(N), torch.Generator(), ALL), code, 0)
    (gradient,) = torch.autograd.grad(side.value.sum(), tags.head.scores.beta)
    assert [bool((column != 0).any()) for column in gradient.T] == [True, True, False, True]
    each = tags.head.log_prob_each(code)
    known = each[0][:6, 0] + each[1][:6, 1] + each[0][:6, 3]
    torch.testing.assert_close(side.value[:6], tags.weight(0) * known)
    torch.testing.assert_close(side.log_prob, known.detach().sum() / 18)


def test_the_prior_counts_once_per_data_set_in_the_units_of_the_tags() -> None:
    tags = tags_of()
    tags.balance(PIXELS, 0.5)  # half of the images have some, three in four of their entries
    normal = torch.distributions.Normal(0.0, 1.0)
    log_p = sum(normal.log_prob(p).sum() for p in (tags.head.scores.beta, tags.head.scores.bias))  # type: ignore
    torch.testing.assert_close(N * tags.log_prior(0), tags.weight(0) * log_p, rtol=1e-5, atol=1e-2)


def test_pseudo_tags_are_those_that_are_sure_to_be_there_or_not() -> None:
    tags = tags_of(threshold=0.9)
    code = torch.randn(50, J, generator=torch.Generator().manual_seed(0))
    p = tags.head.probability(tags.head.decision(code))
    values = tags.believe(code).values
    assert bool(((values == 1) == (p > 0.9)).all()) and bool(((values == 0) == (p < 0.1)).all())
    assert {-1, 0, 1} == set(values.unique().tolist())


def test_what_is_learned_of_sure_tags_alone() -> None:
    joint = Joint(model_with("expected"), [tags := tags_of(threshold=0.9)], consistency=only(pseudo_labels=1.0))
    terms = step(joint).terms
    view = joint.encode(torch.zeros(N, 1, 8, 8), torch.Generator(), ALL)
    seen = tags.see([view])
    nothing = tags.believe(torch.zeros(6, J))  # p = 1/2: nothing is sure
    assert bool((nothing.values == -1).all())
    rows = tags.rows(torch.arange(N), torch.Generator(), ALL)
    learned = tags.learn(nothing, rows, ~tags.present, seen, 0)
    assert float(learned.gain) == 0 and float(learned.terms["sure"]) == 0
    assert 0 < float(terms["tags_sure"]) < 1


def test_what_is_known_is_not_learned_from_a_pseudo_tag() -> None:
    """Of an image with some tags known the others are believed, one by one."""
    tags = tags_of(threshold=0.0)  # every entry is sure
    assert bool(tags.lacking().all())
    rows = tags.rows(torch.arange(N), torch.Generator(), ALL)
    code = torch.randn(N, J, generator=torch.Generator().manual_seed(0))
    pseudo = tags.believe(code)
    assert bool((pseudo.values >= 0).all())
    f = torch.zeros(N, 4, requires_grad=True)
    learned = tags.learn(pseudo, rows, torch.ones(N, dtype=torch.bool), [(f, f)], 0)
    (gradient,) = torch.autograd.grad(learned.gain, f)
    assert torch.equal(gradient != 0, rows < 0)
    everything = tags_of(torch.ones(N, 4))
    assert not bool(everything.lacking().any())


@pytest.mark.parametrize("given", [None, {"tags": 0.5}])
def test_rho_is_the_share_of_entries_that_are_known(given: dict[str, float] | None) -> None:
    """Half of the images have tags, of which three in four are known; whether or not the batches' share is told."""
    tags = tags_of()
    Joint(model_with("expected"), [tags], rho=given)
    assert tags.rho == pytest.approx(0.5 * 0.75) and tags.weight(0) == pytest.approx(PIXELS / (4 * 0.5 * 0.75))


def test_columns_that_do_not_fit_the_head_are_refused() -> None:
    with pytest.raises(UserError, match=r"tags must be \[N, 4\]"):
        tags_of(torch.zeros(3, 2))
