"""What is believed of unlabelled images: threshold, balance of classes, and what is learned from it."""

import torch

from semisight.objectives.pseudo_labels import adaptive, beliefs, pseudo_labels, remember

EQUAL = torch.full((3,), 1 / 3)


def scores(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows).log()


def test_above_the_threshold_the_likeliest_label_is_the_target_and_below_what_is_believed() -> None:
    believed = [0.9, 0.06, 0.04]
    targets = pseudo_labels(scores([0.96, 0.02, 0.02], believed, [0.01, 0.01, 0.98]), EQUAL, EQUAL, 0.95)
    torch.testing.assert_close(targets.label, torch.tensor([[1.0, 0, 0], believed, [0, 0, 1.0]]))
    assert targets.sure.tolist() == [1, 0, 1]


def test_a_class_seen_too_often_has_to_be_surer() -> None:
    seen = torch.tensor([0.8, 0.1, 0.1])
    targets = pseudo_labels(scores([0.98, 0.01, 0.01], [0.4, 0.3, 0.3]), seen, EQUAL, 0.8)
    assert targets.sure.tolist() == [1, 0]
    assert int(targets.label[1].argmin()) == 0, "0.4 of a class seen eight times as often is less than 0.3"
    assert pseudo_labels(scores([0.85, 0.08, 0.07]), seen, EQUAL, 0.8).sure.tolist() == [0]
    assert pseudo_labels(scores([0.85, 0.08, 0.07]), EQUAL, EQUAL, 0.8).sure.tolist() == [1]


def test_scores_count_up_to_a_constant_per_image() -> None:
    drawn = torch.randn(20, 3, generator=torch.Generator().manual_seed(0)) * 4
    a, b = (pseudo_labels(s, EQUAL, EQUAL, 0.9) for s in (drawn, drawn - torch.arange(20.0)[:, None]))
    torch.testing.assert_close(a.label, b.label)
    assert torch.equal(a.sure, b.sure)


def test_the_running_mean_comes_to_what_is_seen() -> None:
    seen = EQUAL.clone()
    for _ in range(1000):
        remember(seen, beliefs(scores([0.7, 0.2, 0.1], [0.5, 0.2, 0.3])))
    torch.testing.assert_close(seen, torch.tensor([0.6, 0.2, 0.2]), atol=1e-3, rtol=0)


def test_one_step_moves_the_running_mean_by_a_hundredth() -> None:
    seen = EQUAL.clone()
    remember(seen, beliefs(scores([0.7, 0.2, 0.1])))
    torch.testing.assert_close(seen, 0.99 * EQUAL + 0.01 * torch.tensor([0.7, 0.2, 0.1]))


def test_what_parts_of_a_batch_say_adds_up_and_no_image_says_nothing() -> None:
    whole = scores([0.7, 0.2, 0.1], [0.5, 0.2, 0.3], [0.1, 0.1, 0.8])
    torch.testing.assert_close(beliefs(whole[:1]) + beliefs(whole[1:]) + beliefs(whole[:0]), beliefs(whole))
    seen = EQUAL.clone()
    remember(seen, beliefs(whole[:0]))
    assert torch.equal(seen, EQUAL)


def test_beliefs_are_not_made_stronger_where_the_model_is_not_sure() -> None:
    """At what is believed already there is nothing to gain; where the model is sure, it is to become surer."""
    held = scores([0.99, 0.005, 0.005], [0.5, 0.3, 0.2])
    targets = pseudo_labels(held, EQUAL, EQUAL, 0.95)
    learned = held.clone().requires_grad_()
    (targets.label * learned.log_softmax(1)).sum().backward()
    assert learned.grad is not None
    assert float(learned.grad[0, 0]) > 0
    torch.testing.assert_close(learned.grad[1], torch.zeros(3), atol=1e-6, rtol=0)


def test_an_adaptive_threshold_follows_how_sure_the_model_is_and_is_lower_for_rarer_classes() -> None:
    seen, confidence = EQUAL.clone(), torch.full((), 1 / 3)
    for _ in range(1000):
        remember(seen, beliefs(scores([0.8, 0.1, 0.1], [0.5, 0.4, 0.1])), confidence)
    torch.testing.assert_close(confidence, torch.tensor(0.65), atol=1e-3, rtol=0)
    threshold = adaptive(confidence, seen)
    torch.testing.assert_close(threshold, 0.65 * torch.tensor([1.0, 0.25 / 0.65, 0.1 / 0.65]), atol=2e-3, rtol=0)
    found = pseudo_labels(scores([0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.7, 0.2, 0.1]), EQUAL, EQUAL, threshold)
    assert found.sure.tolist() == [0, 1, 1]
