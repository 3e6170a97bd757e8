"""Section 2.2, around (6): which place of its block each value comes from, and goes back to.

    eta   = W1 tanh(W2 vec(block))            one MLP per layer, shared by its maps and blocks
    z     ~ Mult(1; q),  q = Softmax(eta)
    C     = sum_a q_a C~_a   (expected)   or   C~_z   (sampled)

Everything here touches each of the P values of each block a few dozen times, forward and backward, and is limited by
memory, not arithmetic. `choose_places` therefore works through the blocks in pieces that stay in a core's cache, and
works out its own gradient from the same pieces; the naive version at the end says the same in plain operations.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# Values per piece and tensor: 0.26 MB, so that the handful in use fits a core's second cache.
_PIECE = 65_536


@dataclass(frozen=True)
class PoolingWeights:
    """W2, its bias, W1, its bias: [P, P] and [P, 1]."""

    inner: Tensor
    inner_bias: Tensor
    outer: Tensor
    outer_bias: Tensor

    def logits(self, blocks: Tensor, hidden: Tensor | None = None, eta: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Hidden units and eta for blocks [P, n], written to the tensors given for them."""
        hidden = torch.addmm(self.inner_bias, self.inner, blocks, out=hidden).tanh_()
        return hidden, torch.addmm(self.outer_bias, self.outer, hidden, out=eta)

    def bounded(self) -> bool:
        """Whether exp(eta) can neither overflow nor vanish, whatever the blocks: |eta| <= sum |W1| + |bias|."""
        return bool((self.outer.abs().sum(1, keepdim=True) + self.outer_bias.abs()).max() < 40)


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


def _pieces(blocks: Tensor, scratch: int) -> Iterator[tuple[slice, list[Tensor]]]:
    """Pieces of blocks [P, n] and some tensors [P, piece] to work in: the same memory each time, so it stays cached."""
    places, n = blocks.shape
    size = min(n, max(1, _PIECE // places)) if blocks.device.type == "cpu" else n
    memory = [blocks.new_empty(places, size) for _ in range(scratch)]
    for start in range(0, n, size):
        stop = min(start + size, n)
        yield slice(start, stop), [tensor[:, : stop - start] for tensor in memory]


def _exponentials(eta: Tensor, bounded: bool, out: Tensor) -> Tensor:
    """e_a = exp(eta_a), where eta is first brought below 0 unless it is bounded."""
    return torch.exp(eta if bounded else eta.sub_(eta.amax(0)), out=out)


class _ChoosePlaces(torch.autograd.Function):
    """Keeps only blocks and z for the backward pass; hidden units and q are worked out again, piece by piece.

    In a piece q_a is e_a / total. Constants in a, such as log total, cancel in the gradient of a softmax and are left
    out there.
    """

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
        up_to, bounded = torch.ones_like(inner).tril_(), weights.bounded()
        for n, (work, eta, e) in _pieces(flat, scratch=3):
            piece, drawn = flat[:, n], z[:, n]
            weights.logits(piece, work, eta)
            _exponentials(eta, bounded, out=e)
            reached = torch.mm(up_to, e, out=work)  # e_0 + ... + e_a
            total = reached[-1].clone()
            reached.gt_(u[n] * total)[-1] = 1.0  # so that rounding never loses a block
            drawn[0] = reached[0]
            torch.sub(reached[1:], reached[:-1], out=drawn[1:])
            if expected:
                torch.sum(torch.mul(e, piece, out=work), 0, out=pooled[n]).div_(total)
            else:
                torch.sum(torch.mul(drawn, piece, out=work), 0, out=pooled[n])
            log_total = total.log()
            if not through:  # only the score function asks for it
                torch.sum(torch.mul(drawn, eta, out=work), 0, out=log_q_z[n]).sub_(log_total)
            torch.sum(e.mul_(eta), 0, out=negative_entropy[n]).div_(total).sub_(log_total)
        ctx.save_for_backward(blocks, z, inner, inner_bias, outer, outer_bias)
        ctx.expected, ctx.through = expected, through
        ctx.set_materialize_grads(False)
        shape = uniform.shape
        return z.view(blocks.shape), pooled.view(shape), negative_entropy.view(shape), log_q_z.view(shape)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        blocks, z, inner, inner_bias, outer, outer_bias = ctx.saved_tensors
        weights = PoolingWeights(inner, inner_bias, outer, outer_bias)
        flat, z = blocks.view(blocks.shape[0], -1), z.view(blocks.shape[0], -1)
        bounded, zeros = weights.bounded(), flat.new_zeros(()).expand(flat.shape)
        grad_z = zeros if grads[0] is None or not ctx.through else grads[0].reshape(flat.shape)
        grad_pooled, grad_entropy, grad_log = (zeros[0] if g is None else g.reshape(-1) for g in grads[1:])
        grad_value_of_q = grad_pooled if ctx.expected or ctx.through else zeros[0]
        out = torch.empty_like(flat)
        totals = [torch.zeros_like(w) for w in (inner, inner_bias, outer, outer_bias)]
        for n, (hidden, eta, q, grad, work) in _pieces(flat, scratch=5):
            piece, grad_piece = flat[:, n], out[:, n]
            weights.logits(piece, hidden, eta)
            _exponentials(eta, bounded, out=q)
            q.div_(q.sum(0))
            grad_q = torch.addcmul(grad_z[:, n], piece, grad_value_of_q[n], out=grad)
            grad_q.addcmul_(eta, grad_entropy[n])
            grad_eta = grad_q.sub_(torch.mul(q, grad_q, out=work).sum(0)).mul_(q)
            if not ctx.through:
                grad_eta.addcmul_(z[:, n] - q, grad_log[n])
            totals[2].addmm_(grad_eta, hidden.T)
            totals[3] += grad_eta.sum(1, keepdim=True)
            grad_hidden = torch.mm(outer.T, grad_eta, out=work)
            grad_hidden.addcmul_(grad_hidden, hidden.square_(), value=-1)
            totals[0].addmm_(grad_hidden, piece.T)
            totals[1] += grad_hidden.sum(1, keepdim=True)
            torch.mul(q if ctx.expected else z[:, n], grad_pooled[n], out=grad_piece)
            grad_piece.addmm_(inner.T, grad_hidden)
        return out.view(blocks.shape), *totals, None, None, None


def choose_places(blocks: Tensor, weights: PoolingWeights, uniform: Tensor, expected: bool, through: bool) -> Chosen:
    """Blocks [P, K, h, w, B] and one uniform number per block [K, h, w, B]; `through` lets z's gradient reach q."""
    w = weights
    blocks = blocks.contiguous()
    results = _ChoosePlaces.apply(
        blocks, w.inner, w.inner_bias, w.outer, w.outer_bias, uniform.contiguous(), expected, through
    )
    return Chosen(*results)


@torch.no_grad()
def pool_expected(blocks: Tensor, weights: PoolingWeights) -> Tensor:
    """sum_a q_a C~_a alone, [P, K, h, w, B] -> [K, h, w, B]: for prediction, without z and without a gradient."""
    flat = blocks.reshape(blocks.shape[0], -1)
    out, bounded = torch.empty_like(flat[0]), weights.bounded()
    for n, (work, eta) in _pieces(flat, scratch=2):
        weights.logits(flat[:, n], work, eta)
        e = _exponentials(eta, bounded, out=eta)
        torch.sum(torch.mul(e, flat[:, n], out=work), 0, out=out[n]).div_(e.sum(0))
    return out.view(blocks.shape[1:])


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
