"""Mutants of the mathematics: small wrong changes of the source, each with the tests that must fail with it.

    python -m tests.mutants [TEXT ...] [--write FILE]        only mutants whose name or file holds one of the TEXTs

Every mutant is made in a temporary copy of `src` and only its named tests run, in a process of their own; the tree
itself is never touched. `make mutants` writes docs/mutants.md. Not a part of the tests: it takes half an hour.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("semisight.training.trainer", "semisight.inference.captions", "semisight.sampling.mcem", "semisight.data")


@dataclass(frozen=True)
class Mutant:
    """`old` stands exactly once in `file` (below src/semisight); `tests` are files or node ids below tests/."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def of(file: str, tests: str, *changes: tuple[str, str, str]) -> list[Mutant]:
    """Several mutants of one file that the same tests, by words, must kill."""
    return [Mutant(name, file, old, new, tuple(tests.split())) for name, old, new in changes]


BOUND, GRADIENTS = "objectives/test_bound.py", "objectives/test_gradients.py"
LABELS, CAPTIONS, TAGS = "objectives/test_labels.py", "objectives/test_captions.py", "objectives/test_tags.py"
CONSISTENCY, PSEUDO = "objectives/test_consistency.py", "objectives/test_pseudo_labels.py"


def targets(name: str) -> str:
    return f"objectives/test_targets.py::test_{name}"


XI = targets("xi_of_the_paper_weighs_every_number_of_a_target_like_one_of_the_image")
TEACHER = targets("pseudo_targets_are_the_teacher_s_of_the_weak_view_and_learned_on_the_strong_one")
PROCESSES = targets("processes_add_up_to_one")
FROZEN = targets("on_a_frozen_image_model_only_the_head_learns_and_pixels_do_not_count")
TOGETHER = targets("together_targets_give_the_sum_of_what_each_gives_in_any_order")
GAIN = targets("the_gain_is_the_expectation_of_the_side")
ALONE = targets("consistency_without_its_parts_is_the_gain_and_the_prior")
OTHERS = targets("an_image_with_a_pseudo_target_never_weighs_more_than_one_that_carries_it")

MUTANTS: list[Mutant] = [
    # ---- objectives ----
    *of(
        "objectives/bound.py",
        BOUND,
        (
            "KL of z counts blocks, not places",
            "blocks * math.log(chosen.places)",
            "chosen.places * math.log(blocks)",
        ),
        ("KL of s with sigma for its square", "(2 * log_sigma).exp() - 1", "log_sigma.exp() - 1"),
        ("KL of z is added", "- self.kl_s - self.kl_z", "- self.kl_s + self.kl_z"),
        ("KL of the first z alone", "for chosen in posterior.chosen:", "for chosen in posterior.chosen[:1]:"),
        ("side term left out of the bound", "- self.kl_z + self.side", "- self.kl_z"),
    ),
    *of(
        "objectives/gradients.py",
        GRADIENTS,
        (
            "NVIL's baseline ascends its error",
            "score.detach() - (fit - fit.detach())",
            "score.detach() + (fit - fit.detach())",
        ),
        (
            "NVIL's signal leaves out what s brings with sampled pooling",
            "self.whole_bound = not model.encoder.mean_is_exact",
            "self.whole_bound = False",
        ),
        ("curvature with the wrong sign", "return decoder.log_alpha0.detach()", "return -decoder.log_alpha0.detach()"),
        ("curvature left out", "exp() * decoded.curvature", "exp() * 0 * decoded.curvature"),
        (
            "NVIL's centre forgets too fast",
            "self.centre.mul_(keep).add_((1 - keep)",
            "self.centre.mul_(1 - keep).add_(keep",
        ),
        ("no gradient through z", "    through_z = True", "    through_z = False"),
        ("NVIL passes the gradient through z", "    through_z = False", "    through_z = True"),
    ),
    *of(
        "objectives/joint.py",
        BOUND,
        (
            "z redrawn for the decoder",
            "self.model.decoder(posterior.s, posterior.drawn)",
            "self.model.decoder(posterior.s, self.model.encoder(x, self._noise(images, generator, rows)).drawn)",
        ),
        (
            "surrogate left out",
            "loss = -(bound.value + self._surrogate(x, posterior, decoded, bound)).mean() - prior",
            "loss = -bound.value.mean() - prior",
        ),
        ("exact alpha0 hardly moves", "step = max(0.01, 1.0 / (global_step + 1))", "step = 1e-6"),
    ),
    *of(
        "objectives/joint.py",
        LABELS,
        (
            "label term on the mean, not the drawn s",
            "self._side(batch, posterior.code, generator, rows)",
            "self._side(batch, posterior.mean, generator, rows)",
        ),
        (
            "prior of beta left out of the paper's setting",
            "decoded, bound)).mean() - prior\n        return Step(loss, self._terms",
            "decoded, bound)).mean()\n        return Step(loss, self._terms",
        ),
        ("spread labels with weight 1", "gain + how.spreading * spread", "gain + spread"),
    ),
    *of(
        "objectives/joint.py",
        TEACHER,
        ("teacher sees the strong view", "return augmented(how.weak) if", "return augmented(how.strong) if"),
        (
            "targets learned on the weak view",
            "self.encode(augmented(how.strong), generator, rows)",
            "self.encode(augmented(how.weak), generator, rows)",
        ),
        ("EMA not used for pseudo-labels", "if self.teacher is None:", "if True:"),
        ("pseudo-labels with weight 1", "gain + how.pseudo_labels * learned.gain", "gain + learned.gain"),
    ),
    *of(
        "objectives/joint.py",
        ALONE,
        ("prior of beta with the wrong sign", "- target.log_prior(step).to(loss)", "+ target.log_prior(step).to(loss)"),
        ("prior of beta left out of consistency", " - target.log_prior(step).to(loss)", ""),
        ("gain without its scale", "loss = loss - target.scale(step) * gain", "loss = loss - gain"),
    ),
    *of(
        "objectives/joint.py",
        FROZEN,
        (
            "two-step with the prior's sign wrong",
            "return Step(-side.mean() - prior,",
            "return Step(-side.mean() + prior,",
        ),
        (
            "two-step weighs pixels",
            "target.balance(1, 1.0)",
            "target.balance(self.model.architecture.n_pixels, 1.0)",
        ),
    ),
    *of(
        "objectives/joint.py",
        CONSISTENCY,
        ("contrastive term for every target", "if how.contrastive > 0 and number == 0:", "if how.contrastive > 0:"),
        (
            "images of the bound counted wrongly by processes",
            "share = max(kept, 0) * rows.total / (count * len(images))",
            "share = 1.0",
        ),
        ("first images enter the bound", "images[local.start - rows.start :]", "images[: local.count]"),
        (
            "one image too few enters the bound",
            "max(rows.start, rows.total - count)",
            "max(rows.start, rows.total - count + 1)",
        ),
        ("bound of more images than there are", "else min(count, rows.total)", "else count"),
    ),
    *of(
        "objectives/joint.py",
        PROCESSES,
        (
            "every process draws the first rows' noise",
            "self.model.noise(rows.total, generator, slice(rows.start, rows.stop), torch.float32)",
            "self.model.noise(rows.count, generator, None, torch.float32)",
        ),
    ),
    *of(
        "objectives/joint.py",
        TOGETHER,
        ("last target alone counts", "side, prior = side + found.value,", "side, prior = found.value,"),
        (
            "last prior alone counts",
            "prior + target.log_prior(int(self.step)).to(prior)",
            "target.log_prior(int(self.step)).to(prior)",
        ),
    ),
    *of(
        "objectives/joint.py",
        targets("validation_is_the_bound_alone_whatever_is_learned"),
        ("training targets in validation", "if not self.training:", "if False:"),
    ),
    *of("objectives/labels.py", f"{XI} {LABELS}", ("xi without rho", "(self.n_pixels / self.rho)", "self.n_pixels")),
    *of(
        "objectives/labels.py",
        LABELS,
        ("prior counted for every labelled image", "label_head.log_prior(self.n_labelled)", "label_head.log_prior(1)"),
        (
            "prior weighs more the fewer labels a batch has",
            "self.weight(step) * self.rho * self.label_head.log_prior",
            "self.weight(step) * self.label_head.log_prior",
        ),
        ("beliefs are not remembered", "remember(self.seen, ", "remember(self.seen.clone(), "),
        ("no imagined image of each class", "minlength=n_classes).float() + 1", "minlength=n_classes).float()"),
        ("an unlabelled image weighs more", "max(self.rho, 1 - self.rho)", "(1 - self.rho)"),
        ("spread labels summed, not averaged", "(r * score).sum(1).mean()", "(r * score).sum(1).sum()"),
    ),
    *of(
        "objectives/labels.py",
        GAIN,
        ("gain of what is labelled, not of a batch", "/ (self.rho * len(rows))", "/ len(rows)"),
    ),
    *of(
        "objectives/pseudo_labels.py",
        PSEUDO,
        ("frequent classes favoured", "(shares / seen.clamp_min(1e-6))", "(seen / shares)"),
        ("sure where it is not", "sure = probability > threshold", "sure = probability < threshold"),
        ("remembers the last step alone", "1 - MEMORY)", "MEMORY)"),
    ),
    *of(
        "objectives/contrastive.py",
        CONSISTENCY,
        ("an image is its own partner", ".roll(n)", ""),
        (
            "dot products instead of cosines",
            "F.normalize(torch.cat([first, second]), dim=1)",
            "torch.cat([first, second])",
        ),
    ),
    *of(
        "objectives/label_spreading.py",
        CONSISTENCY,
        (
            "known labels do not hold",
            "result[known] = F.one_hot(labels[known]",
            "result[known[:0]] = F.one_hot(labels[known[:0]]",
        ),
        ("columns without their shares", "z = z * (len(z) * shares / z.sum(0))", "z = z / z.sum(0)"),
    ),
    *of(
        "objectives/captions.py",
        CAPTIONS,
        (
            "captions weighed without 1/T",
            "* self.xi.ramp(step) / n_symbols",
            "* self.xi.ramp(step) / torch.ones_like(n_symbols)",
        ),
        (
            "every caption of an image counts",
            "self.weight(n_symbols, step).to(code) / drawn_of_image",
            "self.weight(n_symbols, step).to(code)",
        ),
        ("unsure words are learned", "> self.threshold)", "< self.threshold)"),
        ("draws captions that are not there", "(rank >= 0).nonzero", "(rank >= -2).nonzero"),
    ),
    *of("objectives/captions.py", XI, ("xi of captions without rho", "self.n_pixels / self.rho *", "self.n_pixels *")),
    *of(
        "objectives/captions.py",
        OTHERS,
        ("pseudo-captions weigh more", "per_other(self.rho) * total / len(which)", "total / len(which)"),
    ),
    *of(
        "objectives/tags.py",
        TAGS,
        ("unsure tags are learned as absent", "p < 1 - self.threshold, 0, -1", "p < self.threshold, 0, -1"),
        ("prior of tags counted for every image", "self.rho / self.n_tagged * self.head", "self.rho * self.head"),
        ("xi of tags without rho", "(self.n_pixels / self.rho)", "self.n_pixels"),
        ("known tags learned from pseudo-tags", "torch.where(rows[which] < 0, pseudo.values, -1)", "pseudo.values"),
    ),
    *of(
        "objectives/tags.py",
        OTHERS,
        ("pseudo-tags weigh more", "per_other(self.rho) * total / len(which)", "total / len(which)"),
    ),
    # ---- model ----
    *of(
        "model/heads/tags.py",
        "model/test_tags.py",
        ("unknown tags count as absent", "torch.where(values == 0, has_not, torch.zeros_like(has))", "has_not"),
        ("logistic's bound from above", "-F.softplus(variance / 2 - f)", "-F.softplus(-variance / 2 - f)"),
        ("SVM's probability half as sure", "else 4 * self.gamma", "else 2 * self.gamma"),
    ),
    *of(
        "model/heads/labels.py",
        "model/test_labels.py",
        ("hinge once instead of twice", "-2 * self.gamma * loss_if_member", "-self.gamma * loss_if_member"),
        ("mean hinge without its spread", "+ deviation * density", "- deviation * density"),
        ("lambda with the wrong shape", "chi + 4 * gamma * distance", "chi + 2 * gamma * distance"),
        ("beta's mean without lambda", "(1 + lam[:, c].double())", "(1 - lam[:, c].double())"),
        ("a missing label is class 0", "torch.where(labels >= 0, chosen, torch.zeros_like(chosen))", "chosen"),
        (
            "softmax's bound with a quarter of the variance",
            "self.scores.variance(log_sigma) / 2)",
            "self.scores.variance(log_sigma) / 16)",
        ),
        ("prior not shared by images", "return log_p / n_images", "return log_p"),
        ("prior without its precision", "(precision * p.square() + constant)", "(p.square() + constant)"),
    ),
    *of(
        "model/heads/captions.py",
        "model/test_captions.py",
        ("first state without tanh", "State(torch.tanh(c),", "State(c,"),
        (
            "update gate the other way",
            "torch.lerp(torch.tanh(x_n + r * h_n), state.h, z)",
            "torch.lerp(state.h, torch.tanh(x_n + r * h_n), z)",
        ),
        ("codes weighed by the last word alone", "log_weight = log_weight + log_p.gather", "log_weight = log_p.gather"),
    ),
    *of(
        "model/encoders/paper.py",
        "model/test_image_model.py",
        ("s with sigma squared", "s = mu + noise.eps * log_sigma.exp()", "s = mu + noise.eps * (2 * log_sigma).exp()"),
        ("sampled pooling is secretly expected", ".weights(), self.mean_is_exact", ".weights(), True"),
        ("max-pooling is secretly a mean", "c = blocks.amax(0)", "c = blocks.mean(0)"),
        (
            "the image is not centred",
            '(straight-through)."""\n        c = (x - self.centre) / self.scale',
            '(straight-through)."""\n        c = x / self.scale + 1',
        ),
        ("normalised over the batch", "torch.var_mean(maps, (0, 1, 2),", "torch.var_mean(maps, (0, 1, 2, 3),"),
    ),
    *of(
        "model/decoder.py",
        BOUND,
        (
            "precision's sign in the likelihood",
            "self.log_alpha0 - math.log(2 * math.pi)",
            "self.log_alpha0 + math.log(2 * math.pi)",
        ),
        ("variance for precision", "return n_values / squares.sum()", "return squares.sum() / n_values"),
    ),
    *of(
        "model/decoder.py",
        "inference/test_novelty.py",
        ("no image bias", "Decoded(maps + self.image_bias", "Decoded(maps"),
    ),
    *of(
        "model/image_model.py",
        PROCESSES,
        (
            "places of the first rows",
            "dtype=dtype)[..., rows].to(self.device))",
            "dtype=dtype)[..., : rows.stop - rows.start].to(self.device))",
        ),
    ),
    *of(
        "model/image_model.py",
        "model/test_image_model.py",
        ("places of the prior all the first", ".clamp_max(places - 1)", ".clamp_max(0)"),
    ),
    # ---- inference ----
    *of(
        "inference/encode.py",
        "inference/test_encode.py",
        ("spread of codes ignores draws of z", "(within + self.mu.var(0, correction=0)).sqrt()", "within.sqrt()"),
        (
            "codes drawn with sigma squared",
            "self.log_sigma[which].exp() * eps",
            "(2 * self.log_sigma[which]).exp() * eps",
        ),
        ("the first draw of z for all codes", "torch.arange(n) % len(self.mu)", "torch.arange(n) * 0"),
        ("the model stays in eval mode", "model.train(was_training)", "pass"),
    ),
    *of(
        "inference/labels.py",
        "inference/test_labels.py",
        ("spread of decisions ignores draws of z", "(within + each.var(0, correction=0)).sqrt()", "within.sqrt()"),
        (
            "calibration measured on what it saw",
            "fit(decision[there], labels[there])",
            "fit(decision[here], labels[here])",
        ),
    ),
    *of(
        "inference/tags.py",
        "inference/test_tags.py",
        ("unknown entries calibrate", "known = values >= 0", "known = values >= -1"),
    ),
    *of("inference/novelty.py", "inference/test_novelty.py", ("the better mark counts", ".amin(1)", ".amax(1)")),
    *of(
        "inference/imputation.py",
        "inference/test_novelty.py",
        ("no prior of the code", "diagonal(dim1=1, dim2=2).add_(1.0)", "diagonal(dim1=1, dim2=2).add_(1e-9)"),
        ("pixels weigh as one", "precision = alpha0 * torch.bmm", "precision = torch.bmm"),
    ),
    *of(
        "inference/acquisition.py",
        "inference/test_acquisition.py",
        ("sure images first", "return 1 - (first - second)", "return first - second"),
        ("an image votes for itself", "torch.where(itself, -torch.inf, weights / _WIDTH)", "weights / _WIDTH"),
    ),
    *of(
        "inference/beam_search.py",
        "inference/test_beam_search.py",
        ("mixture without 1/N_s", "mixed += scale - math.log(n_codes)", "mixed += scale"),
        (
            "words averaged, not sentences",
            "log_weight = log_weight[row] + p[row, :, word].log()",
            "log_weight = log_weight[row]",
        ),
        ("score without 1/N_s", ".logsumexp(0) - math.log(n_codes))", ".logsumexp(0))"),
        ("forbidden words are said", "mixed[:, self.forbidden] = -math.inf", "pass"),
    ),
    # ---- sampling ----
    *of(
        "sampling/codes.py",
        "sampling/test_codes.py",
        ("Matheron's noise left out", "- variance.sqrt() * noise)", ")"),
        ("label bias with the wrong sign", "y * (1 + lam) - bias", "y * (1 + lam) + bias"),
        (
            "prior of s 20 % too precise",
            "diagonal = decoder.log_alpha0.new_ones(",
            "diagonal = 1.2 * decoder.log_alpha0.new_ones(",
        ),
        ("slope without the prior", "(here.linear - here.diagonal * code[images])", "here.linear"),
        ("labels of variance lambda", "lam / head.gamma, labels >= 0", "lam, labels >= 0"),
    ),
    *of(
        "sampling/parameters.py",
        "sampling/test_parameters.py",
        ("alpha0's shape counts pixels twice", "priors.alpha0_shape + n_values / 2", "priors.alpha0_shape + n_values"),
        ("image bias drawn too narrow", "noise / precision.sqrt()", "noise / precision"),
        (
            "prior mean of the bias left out",
            "(priors.bias_precision * priors.bias_mean + alpha0 * total)",
            "(alpha0 * total)",
        ),
    ),
    *of(
        "sampling/z_conditionals.py",
        "sampling/test_z_conditionals.py",
        ("curvature of z twice", "gram - 0.5 * gram.diagonal(dim1=1, dim2=2)", "gram - gram.diagonal(dim1=1, dim2=2)"),
        (
            "residual not kept up to date",
            "change.scatter_add_(0, new[k][None], -v[k][None])",
            "change.scatter_add_(0, new[k][None], v[k][None])",
        ),
        ("z above without alpha0", "* (alpha0 * v)[:, None]).T", "* v[:, None]).T"),
        ("annealing's prior left out", "logits += prior[:, k]", "pass"),
    ),
    *of(
        "sampling/evidence.py",
        "sampling/test_evidence.py",
        ("weights not of steps", "(t - before) * (log_joint", "t * (log_joint"),
        ("prior of z left out", "places[..., 0].numel() * math.log(", "0 * math.log("),
        ("chains added, not averaged", "weights.logsumexp(0) - math.log(config.n_chains)", "weights.logsumexp(0)"),
    ),
    *of(
        "sampling/top_map.py",
        "sampling/test_mcem.py::test_the_sampled_gradient_has_the_mean_that_summing_over_z_gives",
        ("MAP estimate without the prior", "- 0.5 * s.square().sum()", "- 0.0 * s.square().sum()"),
    ),
    *of(
        "sampling/mcem.py",
        "sampling/test_mcem.py",
        ("prior counted for every image", "log_density(self.decoder) / len(self.latents)", "log_density(self.decoder)"),
        (
            "draws of an image weigh as images",
            "torch.full_like(draws.s[0, 0, 0], 1 / n_draws)",
            "torch.full_like(draws.s[0, 0, 0], 1.0)",
        ),
    ),
    # ---- what a run keeps ----
    *of(
        "training/ema.py",
        "training/test_optimiser.py",
        ("EMA slower at its start", "int(n) / (9 + int(n))", "int(n) / (1 + int(n))"),
    ),
    *of(
        "training/state.py",
        targets("checkpoints_by_part"),
        ("checkpoints without averages", "with in_place(self.average):", "with in_place(None):"),
        ("resumed with the averages for weights", "self.parameters[name].data.copy_(value)", "pass"),
    ),
    *of(
        "training/old_format.py",
        "runs/test_old_runs.py",
        ("old runs without their averages", '*tensors.get("averaged", {}).items()', "*()"),
        ("old heads mixed up", '"captions" if about.get("captions") else "labels"', '"labels"'),
    ),
]


# Of slow files the one test that is meant to notice.
MEANT: dict[str, tuple[str, ...]] = {  # a file, and names of tests in it without their test_
    "max-pooling is secretly a mean": ("model/test_image_model.py", "max_pooling_is_the_largest_of_each_block"),
    "codes weighed by the last word alone": (
        "inference/test_beam_search.py",
        "a_beam_of_one_takes_the_likeliest_word_at_every_step",
    ),
    "mean hinge without its spread": ("model/test_labels.py", "expected_log_prob_matches_monte_carlo"),
    "lambda with the wrong shape": ("model/test_labels.py", "lambda_draws_are_inverse_gaussian"),
    "beta's mean without lambda": ("model/test_labels.py", "beta_draws_match_the_brute_force_gaussian"),
    "a missing label is class 0": ("model/test_labels.py", "missing_labels_contribute_nothing"),
    "softmax's bound with a quarter of the variance": (
        "model/test_labels.py",
        "softmax_expected_log_prob_is_a_lower_bound_within_half_the_variance",
    ),
    "prior not shared by images": ("model/test_labels.py", "the_priors_shares_add_up_to_the_prior"),
    "prior without its precision": ("model/test_labels.py", "the_priors_shares_add_up_to_the_prior"),
    "alpha0's shape counts pixels twice": ("sampling/test_parameters.py", "alpha0_is_drawn_from_its_gamma"),
    "image bias drawn too narrow": ("sampling/test_parameters.py", "the_bias_is_drawn_from_its_gaussian"),
    "prior mean of the bias left out": ("sampling/test_parameters.py", "the_bias_is_drawn_from_its_gaussian"),
    "curvature of z twice": (
        "sampling/test_z_conditionals.py",
        "every_probability_nearest_the_image_is_that_of_brute_force",
    ),
    "residual not kept up to date": (
        "sampling/test_z_conditionals.py",
        "every_probability_nearest_the_image_is_that_of_brute_force",
    ),
    "annealing's prior left out": ("sampling/test_evidence.py", "annealing_averages_to_the_evidence_with_less_spread"),
    "z above without alpha0": (
        "sampling/test_z_conditionals.py",
        "every_probability_further_up_is_that_of_brute_force",
    ),
    "weights not of steps": ("sampling/test_evidence.py", "annealing_averages_to_the_evidence_with_less_spread"),
    "prior of z left out": (
        "sampling/test_evidence.py",
        "the_prior_s_density_cancels_in_the_joint",
        "annealing_averages_to_the_evidence_with_less_spread",
    ),
    "chains added, not averaged": ("sampling/test_evidence.py", "chains_are_averaged_image_by_image"),
    "prior counted for every image": ("sampling/test_mcem.py", "a_gradient_step_follows_the_posterior_per_image"),
    "draws of an image weigh as images": (
        "sampling/test_mcem.py",
        "an_image_counts_once_for_beta_however_often_it_is_drawn",
    ),
    "NVIL's baseline ascends its error": (
        "objectives/test_gradients.py",
        "nvil_s_baseline_learns_to_foretell_the_signal",
    ),
    "images of the bound counted wrongly by processes": (
        "objectives/test_consistency.py",
        "processes_share_the_images_of_the_bound",
    ),
    "first images enter the bound": (
        "objectives/test_consistency.py",
        "so_many_images_of_a_batch_enter_the_bound_unaugmented",
    ),
    "one image too few enters the bound": (
        "objectives/test_consistency.py",
        "so_many_images_of_a_batch_enter_the_bound_unaugmented",
    ),
    "bound of more images than there are": (
        "objectives/test_consistency.py",
        "so_many_images_of_a_batch_enter_the_bound_unaugmented",
    ),
    "captions weighed without 1/T": (
        "objectives/test_captions.py",
        "xi_weighs_every_caption_like_the_pixels_of_an_image",
    ),
    "every caption of an image counts": (
        "objectives/test_captions.py",
        "xi_weighs_every_caption_like_the_pixels_of_an_image",
    ),
    "unsure words are learned": (
        "objectives/test_captions.py",
        "sure_words_are_those_of_the_likeliest_caption_above_the_threshold",
    ),
    "the first draw of z for all codes": ("inference/test_encode.py", "draws_of_z_are_taken_in_turn"),
    "the model stays in eval mode": (
        "inference/test_encode.py",
        "the_model_is_in_eval_mode_while_it_encodes_and_back_even_if_stopped",
    ),
    "spread of decisions ignores draws of z": (
        "inference/test_labels.py",
        "the_spread_counts_what_draws_of_z_disagree_about",
    ),
    "calibration measured on what it saw": (
        "inference/test_labels.py",
        "a_calibration_is_fitted_on_held_out_labels_and_measured_on_others",
    ),
}


def meant(mutant: Mutant) -> Mutant:
    if mutant.name not in MEANT:
        return mutant
    file, *names = MEANT[mutant.name]
    return replace(mutant, tests=tuple(f"{file}::test_{name}" for name in names))


MUTANTS = [meant(mutant) for mutant in MUTANTS]


def place(mutant: Mutant, source: Path) -> str:
    """Writes the mutant into a copy of the source; gives the text to put back."""
    file = source / "semisight" / mutant.file
    text = file.read_text()
    if text.count(mutant.old) != 1:
        raise SystemExit(f"{mutant.name}: {mutant.old!r} stands {text.count(mutant.old)} times in {mutant.file}")
    file.write_text(text.replace(mutant.old, mutant.new))
    return text


def warm(source: Path) -> None:
    """Imports what every child needs, once: the libraries stay, the package itself is forgotten again."""
    sys.path.insert(0, str(source))
    sys.dont_write_bytecode = True
    for name in (
        "pytest_timeout",
        "hypothesis.extra.numpy",
        "torch._dynamo",
        "scipy.stats",
        "sklearn.linear_model",
        *PACKAGES,
    ):
        import_module(name)
    for name in [name for name in sys.modules if name.split(".")[0] == "semisight"]:
        del sys.modules[name]


def run_tests(source: Path, tests: Sequence[str]) -> int:
    """pytest's exit code, in a forked process that imports the mutated package anew."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    os.chdir(ROOT)
    os.environ["PYTHONPATH"] = str(source)  # for processes that tests start
    import pytest

    import semisight

    assert str(semisight.__file__).startswith(str(source)), "the mutant would not be seen"
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # some take longer to import than the tests to run
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "pytest_timeout"]
    code = pytest.main([*options, *(f"tests/{test}" for test in tests)])
    os._exit(int(code))


OUTCOMES = {0: "survived", 1: "killed"}  # any other code is a mutant or a test that is broken


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="*", help="only mutants whose name or file holds one of these")
    parser.add_argument("--write", type=Path, help="write the outcome to this Markdown file")
    parser.add_argument("--check", action="store_true", help="only see that every mutant can be made")
    chosen = parser.parse_args(arguments)
    mutants = [m for m in MUTANTS if not chosen.texts or any(text in f"{m.name} {m.file}" for text in chosen.texts)]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        if not chosen.check:
            warm(source)
        for number, mutant in enumerate(mutants, start=1):
            text, started = place(mutant, source), time.monotonic()
            code = -1 if chosen.check else run_tests(source, mutant.tests)
            (source / "semisight" / mutant.file).write_text(text)
            outcome = OUTCOMES.get(code, f"broken ({code})")
            rows.append((mutant, outcome))
            seconds = time.monotonic() - started
            print(f"{number:3}/{len(mutants)} {outcome:9} {seconds:5.1f} s  {mutant.file}: {mutant.name}", flush=True)
    killed = sum(outcome == "killed" for _, outcome in rows)
    print(f"{killed} of {len(rows)} killed")
    if chosen.write:
        chosen.write.write_text(page(rows, killed))
    return 0 if killed == len(rows) else 1


def page(rows: Sequence[tuple[Mutant, str]], killed: int) -> str:
    lines = [
        "# Mutants",
        "",
        "Small wrong changes of the mathematics, each with the tests that must fail with it (`tests/mutants.py`; `make",
        f"mutants` writes this page). **{killed} of {len(rows)} are killed ({killed / len(rows):.0%}).**",
        "",
        "The list is written by hand, not drawn: it holds the mistakes that someone made or feared. On its first run",
        "ten survived. Three had been given the wrong tests; for seven there was none, and one was added for each.",
        "",
        "| file | mutant | tests | outcome |",
        "|---|---|---|---|",
    ]
    for mutant, outcome in rows:
        tests = ", ".join(f"`{test.split('::')[0]}`" for test in mutant.tests)
        lines.append(f"| `{mutant.file}` | {mutant.name} | {tests} | {outcome} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
