"""rho, the share of a batch that carries a target, against what the batches of a plan have on average."""

import pytest
import torch
from torch import Tensor

from semisight.data.batches import LabelledAndUnlabelled, Shuffled, batches_for, share_of_batch

FEW, MANY = torch.arange(100) < 6, torch.arange(100) < 70
ALL = torch.ones(100, dtype=torch.bool)


@pytest.mark.parametrize("present", [FEW, MANY, ALL], ids=["few", "many", "all"])
@pytest.mark.parametrize("others", [True, False])
def test_rho_is_what_batches_have_on_average(present: Tensor, others: bool) -> None:
    plan = batches_for(present, 32, 8, others=others)
    other = torch.arange(100) % 5 == 0  # of another target, spread over both
    for has in (present, other):
        found = torch.stack([has[plan.indices(step, 0)].double().mean() for step in range(300)]).mean()
        assert share_of_batch(has, plan) == pytest.approx(float(found), abs=0.02)


def test_few_are_dealt_and_many_come_by_chance() -> None:
    dealt = batches_for(FEW, 32, 8, strata=torch.arange(100) % 3)
    assert isinstance(dealt, LabelledAndUnlabelled) and share_of_batch(FEW, dealt) == 0.25
    assert all(int(FEW[dealt.indices(step, 0)].sum()) == 8 for step in range(5))
    assert isinstance(batches_for(MANY, 32, 8), Shuffled) and isinstance(batches_for(ALL, 32, 8), Shuffled)
    assert isinstance(batches_for(~ALL, 32, 8), Shuffled), "images alone"
    alone = batches_for(FEW, 32, 8, others=False)
    assert share_of_batch(FEW, alone) == 1.0 and bool(FEW[alone.indices(3, 0)].all())
