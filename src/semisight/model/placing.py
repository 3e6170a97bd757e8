"""Section 2.2, around (6): which place of its block each value comes from, and goes back to.

    eta   = W1 tanh(W2 vec(block))            one MLP per layer, shared by its maps and blocks
    z     ~ Mult(1; q),  q = Softmax(eta)
    C     = sum_a q_a C~_a   (expected)   or   C~_z   (sampled)

Everything here touches each of the P values of each block a few dozen times, forward and backward, and is limited by
memory, not arithmetic. `choose_places` therefore works through the blocks in pieces that stay in a core's cache, and
works out its own gradient from the same pieces; the naive version at the end says the same in plain operations.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# Blocks per piece: with 9 places about 0.3 MB a tensor, so that the handful in use fits a core's second cache.
_PIECE = 8192


@dataclass(frozen=True)
class PoolingWeights:
    """W2, its bias, W1, its bias: [P, P] and [P, 1]."""

    inner: Tensor
    inner_bias: Tensor
    outer: Tensor
    outer_bias: Tensor

    def logits(self, blocks: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden units and eta for blocks [P, n]."""
        hidden = torch.addmm(self.inner_bias, self.inner, blocks).tanh_()
        return hidden, torch.addmm(self.outer_bias, self.outer, hidden)


@dataclass(frozen=True)
class Chosen:
    """For blocks [P, K, h, w, B]: z one-hot of that shape; pooled values, KL(q || uniform) - log P = sum_a q log q, and
    log q(z) per block, [K, h, w, B] each.

    The gradient with respect to z is passed on to q (straight-through); whoever does not want that detaches z.
    """

    z: Tensor
    pooled: Tensor
    negative_entropy: Tensor
    log_q_z: Tensor


def draw_places(q: Tensor, uniform: Tensor) -> Tensor:
    """z ~ Mult(1; q) as one-hot [P, ...], from one uniform number per block [...]."""
    z = torch.empty_like(q)
    reached, total = torch.zeros_like(uniform), torch.zeros_like(uniform)
    for place in range(q.shape[0] - 1):
        total += q[place]
        now = (total > uniform).to(q.dtype)
        torch.sub(now, reached, out=z[place])
        reached = now
    torch.sub(1.0, reached, out=z[-1])  # the rest, so that rounding never loses a block
    return z


class _ChoosePlaces(torch.autograd.Function):
    """Keeps only blocks and z for the backward pass; hidden units and q are worked out again, piece by piece."""

    @staticmethod
    def forward(
        ctx: Any,
        blocks: Tensor,
        inner: Tensor,
        inner_bias: Tensor,
        outer: Tensor,
        outer_bias: Tensor,
        uniform: Tensor,
        expected: bool,
        through: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        weights = PoolingWeights(inner, inner_bias, outer, outer_bias)
        flat, u = blocks.view(blocks.shape[0], -1), uniform.reshape(-1)
        z, pooled, negative_entropy = torch.empty_like(flat), torch.empty_like(u), torch.empty_like(u)
        log_q_z = torch.zeros_like(u)
        for start in range(0, flat.shape[1], _PIECE):
            n = slice(start, start + _PIECE)
            piece = flat[:, n]
            log_q = torch.log_softmax(weights.logits(piece)[1], dim=0)
            q = log_q.exp()
            z[:, n] = draw_places(q, u[n])
            torch.sum((q if expected else z[:, n]) * piece, 0, out=pooled[n])
            if not through:  # only the score function asks for it
                torch.sum(z[:, n] * log_q, 0, out=log_q_z[n])
            torch.sum(q.mul_(log_q), 0, out=negative_entropy[n])
        ctx.save_for_backward(blocks, z, inner, inner_bias, outer, outer_bias)
        ctx.expected, ctx.through = expected, through
        ctx.set_materialize_grads(False)
        shape = uniform.shape
        return z.view(blocks.shape), pooled.view(shape), negative_entropy.view(shape), log_q_z.view(shape)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        blocks, z, inner, inner_bias, outer, outer_bias = ctx.saved_tensors
        weights = PoolingWeights(inner, inner_bias, outer, outer_bias)
        flat = blocks.view(blocks.shape[0], -1)
        grad_z = None if grads[0] is None else grads[0].reshape(flat.shape)
        grad_pooled, grad_entropy, grad_log = (None if g is None else g.reshape(-1) for g in grads[1:])
        out = torch.empty_like(flat)
        totals = [torch.zeros_like(w) for w in (inner, inner_bias, outer, outer_bias)]
        for start in range(0, flat.shape[1], _PIECE):
            n = slice(start, start + _PIECE)
            piece = flat[:, n]
            hidden, eta = weights.logits(piece)
            log_q = torch.log_softmax(eta, dim=0)
            q = log_q.exp()
            grad_q = torch.zeros_like(q) if grad_z is None or not ctx.through else grad_z[:, n].clone()
            if grad_pooled is not None and (ctx.expected or ctx.through):
                grad_q.addcmul_(grad_pooled[n], piece)
            if grad_entropy is not None:
                grad_q.addcmul_(grad_entropy[n], log_q)  # the constant 1 of d(q log q) cancels in the softmax
            grad_eta = grad_q.sub_((q * grad_q).sum(0)).mul_(q)
            if grad_log is not None and not ctx.through:
                grad_eta.addcmul_(grad_log[n], z[:, n] - q)
            totals[2].addmm_(grad_eta, hidden.T)
            totals[3] += grad_eta.sum(1, keepdim=True)
            grad_hidden = torch.mm(outer.T, grad_eta).mul_(1 - hidden.square())
            totals[0].addmm_(grad_hidden, piece.T)
            totals[1] += grad_hidden.sum(1, keepdim=True)
            grad_blocks = torch.mm(inner.T, grad_hidden)
            if grad_pooled is not None:
                grad_blocks.addcmul_(grad_pooled[n], q if ctx.expected else z[:, n])
            out[:, n] = grad_blocks
        return out.view(blocks.shape), *totals, None, None, None


def choose_places(blocks: Tensor, weights: PoolingWeights, uniform: Tensor, expected: bool, through: bool) -> Chosen:
    """Blocks [P, K, h, w, B] and one uniform number per block [K, h, w, B]; `through` lets z's gradient reach q."""
    w = weights
    blocks = blocks.contiguous()
    results = _ChoosePlaces.apply(
        blocks, w.inner, w.inner_bias, w.outer, w.outer_bias, uniform.contiguous(), expected, through
    )
    return Chosen(*results)


def place_probabilities(blocks: Tensor, weights: PoolingWeights) -> Tensor:
    """q(z) for reports and samplers, [P, K, h, w, B]."""
    return torch.softmax(weights.logits(blocks.reshape(blocks.shape[0], -1))[1], dim=0).view(blocks.shape)


def naive_choose_places(
    blocks: Tensor, weights: PoolingWeights, uniform: Tensor, expected: bool, through: bool
) -> Chosen:
    """The same in plain operations: the oracle of the tests, and what can be exported."""
    hidden = torch.tanh(weights.inner @ blocks.flatten(1) + weights.inner_bias)
    log_q = torch.log_softmax(weights.outer @ hidden + weights.outer_bias, dim=0).view(blocks.shape)
    q = log_q.exp()
    drawn = draw_places(q.detach(), uniform)
    z = drawn + (q - q.detach()) if through else drawn
    pooled = ((q if expected else z) * blocks).sum(0)
    return Chosen(z, pooled, (q * log_q).sum(0), (drawn * log_q).sum(0))
