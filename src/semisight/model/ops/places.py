"""Section 2.2, around (6): which place of its block each value comes from, and goes back to.

    eta   = W1 tanh(W2 vec(block))            one MLP per layer, shared by its maps and blocks
    z     ~ Mult(1; q),  q = Softmax(eta)
    C     = sum_a q_a C~_a   (expected)   or   C~_z   (sampled)

Everything here touches each of the P values of each block a few dozen times, forward and backward, and is limited by
memory, not arithmetic. `choose_places` therefore works through the blocks in pieces that stay in a core's cache, and
works out its own gradient from the same pieces: in C where that can be had (kernels.py), else by torch. The naive
version at the end says the same in plain operations.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from semisight.model.ops import kernels

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

    def of_mlp(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.inner, self.inner_bias, self.outer, self.outer_bias

    def in_memory(self) -> tuple[Tensor, ...]:
        """As kernels.c reads them."""
        return tuple(tensor.detach().contiguous() for tensor in self.of_mlp())

    def bounded(self) -> bool:
        """Whether exp(eta) can neither overflow nor vanish, whatever the blocks: |eta| <= sum |W1| + |bias|."""
        return bool((self.outer.abs().sum(1, keepdim=True) + self.outer_bias.abs()).max() < 40)


@dataclass(frozen=True)
class Drawn:
    """z without its zeros, which would be P times as large and as slow to read.

    The gradient with respect to z is that with respect to `token`, zeros that take no memory.
    """

    index: Tensor  # [K, h, w, B]: the number of the place, as a float
    token: Tensor  # [P, K, h, w, B]


@dataclass(frozen=True)
class Chosen:
    """For blocks [P, K, h, w, B]: the drawn places; pooled values, KL(q || uniform) - log P = sum_a q log q, and
    log q(z) per block, [K, h, w, B] each.

    The gradient with respect to z is passed on to q (straight-through); whoever does not want that detaches z.
    """

    drawn: Tensor | Drawn  # z one-hot, or without its zeros
    pooled: Tensor
    negative_entropy: Tensor
    log_q_z: Tensor

    @property
    def places(self) -> int:
        """P."""
        return len(self.drawn.token if isinstance(self.drawn, Drawn) else self.drawn)

    @property
    def z(self) -> Tensor:
        """One-hot, [P, K, h, w, B]; written out when asked for."""
        return as_one_hot(self.drawn)


def one_hot(index: Tensor, places: range, out: Tensor | None = None) -> Tensor:
    """For some of the places, 1 where they are the index and 0 elsewhere, [places, ...]; of the index's type."""
    numbers = torch.arange(places.start, places.stop, dtype=index.dtype, device=index.device)
    out = index.new_empty(len(places), *index.shape) if out is None else out
    return torch.eq(index, numbers.view(-1, *[1] * index.dim()), out=out)


def as_one_hot(z: Tensor | Drawn) -> Tensor:
    """z itself, [P, K, h, w, B]."""
    return one_hot(z.index, range(len(z.token))) + z.token if isinstance(z, Drawn) else z


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


def _piece_size(blocks: Tensor) -> int:
    """Columns of blocks [P, n] to work on at once."""
    places, n = blocks.shape
    return max(1, min(n, _PIECE // places) if blocks.device.type == "cpu" else n)


def _pieces(blocks: Tensor, scratch: Sequence[Tensor], *others: Tensor) -> Iterator[list[Tensor]]:
    """Pieces of blocks [P, n]; [rows, piece] to work in, the same memory each time, so it stays cached; and pieces of
    others [..., n]."""
    for tensors in zip(*(tensor.split(_piece_size(blocks), -1) for tensor in (blocks, *others)), strict=True):
        n = tensors[0].shape[1]
        yield [tensors[0], *(memory if n == memory.shape[1] else memory[:, :n] for memory in scratch), *tensors[1:]]


@dataclass(frozen=True)
class _Kept:
    """What the gradient of choosing is worked out from."""

    blocks: Tensor
    index: Tensor
    log_total: Tensor  # log sum_a exp(eta_a)
    weights: PoolingWeights
    expected: bool
    through: bool


class _ChoosePlaces(torch.autograd.Function):
    """Keeps only the blocks, and per block the drawn place and log sum_a exp(eta_a), for the backward pass."""

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
    ) -> tuple[Tensor, ...]:
        weights = PoolingWeights(inner, inner_bias, outer, outer_bias)
        choose = _choose_in_c if kernels.usable(blocks) else _choose
        index, pooled, entropy, log_q_z, log_total = choose(blocks, weights, uniform, expected, through)
        ctx.save_for_backward(blocks, index, log_total, inner, inner_bias, outer, outer_bias)
        ctx.expected, ctx.through = expected, through
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(index)
        return index, blocks.new_zeros(()).expand(blocks.shape), pooled, entropy, log_q_z

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        blocks, index, log_total, *weights = ctx.saved_tensors
        back = _choose_back_in_c if kernels.usable(blocks) else _choose_back
        of_z = grads[1] if ctx.through else None
        kept = _Kept(blocks, index, log_total, PoolingWeights(*weights), ctx.expected, ctx.through)
        return *back(kept, (of_z, *grads[2:])), None, None, None


def _choose(
    blocks: Tensor, weights: PoolingWeights, uniform: Tensor, expected: bool, through: bool
) -> tuple[Tensor, ...]:
    """Index, pooled value, sum_a q log q, log q(z) (0 if `through`) and log sum_a exp(eta_a), [K, h, w, B] each."""
    inner, inner_bias, outer, outer_bias = weights.of_mlp()
    places, flat = range(len(blocks)), blocks.view(len(blocks), -1)
    bounded = weights.bounded()
    index, pooled, entropy, total, largest = (torch.empty_like(uniform) for _ in range(5))
    log_q_z = torch.zeros_like(uniform)
    with_bias, up_to = torch.cat([outer, outer_bias], 1), torch.ones_like(inner).tril_()
    size = _piece_size(flat)
    scratch = [flat.new_ones(len(flat) + 1, size)]  # hidden units, and a 1 for the bias
    scratch += [flat.new_empty(len(flat), size) for _ in range(3)]
    per_block = (t.view(-1) for t in (uniform, index, pooled, entropy, log_q_z, total, largest))
    for piece, units, work, eta, e, u, at, value, e_eta, log_q, sum_e, top in _pieces(flat, scratch, *per_block):
        hidden = torch.addmm(inner_bias, inner, piece, out=units[:-1]).tanh_()
        torch.mm(with_bias, units, out=eta)
        if not bounded:
            eta.sub_(torch.amax(eta, 0, out=top))
        torch.exp(eta, out=e)
        reached = torch.mm(up_to, e, out=work)  # e_0 + ... + e_a
        sum_e.copy_(reached[-1])
        passed = reached[:-1].le_(u * sum_e)  # not the last place, so that rounding never loses a block
        torch.sum(passed, 0, out=at)
        if expected:
            torch.sum(torch.mul(e, piece, out=hidden), 0, out=value)
        else:
            torch.sum(torch.mul(one_hot(at, places), piece, out=hidden), 0, out=value)
        if not through:  # only the score function asks for it
            torch.sum(torch.mul(one_hot(at, places), eta, out=hidden), 0, out=log_q)
        torch.sum(e.mul_(eta), 0, out=e_eta)
    log_total = total.log()
    entropy.div_(total).sub_(log_total)
    if expected:
        pooled.div_(total)
    if not through:
        log_q_z.sub_(log_total)
    if not bounded:
        log_total += largest
    return index, pooled, entropy, log_q_z, log_total


def _choose_back(kept: _Kept, grads: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    """From the gradients of z, the pooled value, sum_a q log q and log q(z), those of the blocks and the weights.

    Hidden units and log q = eta - log total are worked out again, log q by one product with rows for bias and total.
    Constants in a cancel in the gradient of a softmax, so log q may stand for 1 + log q there.
    """
    inner, inner_bias, outer, outer_bias = kept.weights.of_mlp()
    blocks, expected, through = kept.blocks, kept.expected, kept.through
    flat, places = blocks.view(len(blocks), -1), range(len(blocks))
    zeros = flat.new_zeros(()).expand(flat.shape)
    grad_z = zeros if grads[0] is None else grads[0].reshape(flat.shape)
    of_each = (zeros[0] if grad is None else grad.reshape(-1) for grad in grads[1:])
    out, to_inner, to_inner_bias = torch.empty_like(flat), torch.zeros_like(inner), torch.zeros_like(inner_bias)
    extended = torch.cat([outer, outer_bias, torch.full_like(outer_bias, -1.0)], 1)
    to_outer = torch.zeros_like(extended[:, :-1])
    size = _piece_size(flat)
    scratch = [flat.new_ones(len(flat) + 2, size)]  # hidden units, a 1, log total
    scratch += [flat.new_empty(len(flat), size) for _ in range(3)]
    others = (out, grad_z, kept.index.view(-1), kept.log_total.view(-1), *of_each)
    for piece, units, q, grad, work, to_piece, of_z, at, log_sum, of_value, of_entropy, of_log_q in _pieces(
        flat, scratch, *others
    ):
        hidden = torch.addmm(inner_bias, inner, piece, out=units[:-2]).tanh_()
        units[-1].copy_(log_sum)
        log_q = torch.mm(extended, units, out=q)
        torch.addcmul(of_z, log_q, of_entropy, out=grad)
        if expected or through:
            grad.addcmul_(piece, of_value)
        log_q.exp_()  # in q
        of_eta = torch.mul(q, grad, out=work)
        of_eta.addcmul_(q, of_eta.sum(0), value=-1)
        if not through:
            of_eta.addcmul_(one_hot(at, places) - q, of_log_q)
        to_outer.addmm_(of_eta, units[:-1].T)
        of_hidden = torch.mm(outer.T, of_eta, out=grad)
        of_hidden.addcmul_(of_hidden, hidden.square_(), value=-1)
        to_inner.addmm_(of_hidden, piece.T)
        to_inner_bias += of_hidden.sum(1, keepdim=True)
        torch.mm(inner.T, of_hidden, out=to_piece).addcmul_(q if expected else one_hot(at, places), of_value)
    return out.view(blocks.shape), to_inner, to_inner_bias, to_outer[:, :-1], to_outer[:, -1:]


def _choose_in_c(
    blocks: Tensor, weights: PoolingWeights, uniform: Tensor, expected: bool, through: bool
) -> tuple[Tensor, ...]:
    """`_choose` by kernels.c."""
    places, count, of_mlp = len(blocks), uniform.numel(), weights.in_memory()
    index, pooled, entropy, log_total = (torch.empty_like(uniform) for _ in range(4))
    log_q_z = torch.zeros_like(uniform) if through else torch.empty_like(uniform)
    results = (index, pooled, entropy, log_total, None if through else log_q_z)

    def work(start: int, stop: int) -> None:
        kernels.call("choose", places, count, start, stop, blocks, *of_mlp, uniform, expected, *results)

    kernels.in_parts(count, work)
    return index, pooled, entropy, log_q_z, log_total


def _choose_back_in_c(kept: _Kept, grads: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    """`_choose_back` by kernels.c."""
    places, count, of_mlp = len(kept.blocks), kept.index.numel(), kept.weights.in_memory()
    given = tuple(None if grad is None else grad.contiguous() for grad in grads)
    out = torch.empty_like(kept.blocks)
    sums: dict[int, tuple[Tensor, ...]] = {}  # by where a part starts: threads end in any order, sums must not

    def work(start: int, stop: int) -> None:
        to = tuple(torch.empty(weight.shape, dtype=torch.float64) for weight in of_mlp)
        saved = (kept.blocks, *of_mlp, kept.index, kept.log_total)
        kernels.call("choose_back", places, count, start, stop, *saved, *given, kept.expected, kept.through, out, *to)
        sums[start] = to

    kernels.in_parts(count, work)
    in_order = [to for _, to in sorted(sums.items())]
    return out, *(torch.stack(parts).sum(0).to(out.dtype) for parts in zip(*in_order, strict=True))


def choose_places(blocks: Tensor, weights: PoolingWeights, uniform: Tensor, expected: bool, through: bool) -> Chosen:
    """Blocks [P, K, h, w, B] and one uniform number per block [K, h, w, B]; `through` lets z's gradient reach q."""
    w = weights
    index, token, *rest = _ChoosePlaces.apply(
        blocks.contiguous(), w.inner, w.inner_bias, w.outer, w.outer_bias, uniform.contiguous(), expected, through
    )
    return Chosen(Drawn(index, token if through else token.detach()), *rest)


@torch.no_grad()
def pool_expected(blocks: Tensor, weights: PoolingWeights) -> Tensor:
    """sum_a q_a C~_a alone, [P, K, h, w, B] -> [K, h, w, B]: for prediction, without z and without a gradient."""
    flat = blocks.reshape(len(blocks), -1)
    out = torch.empty_like(flat[0])
    if kernels.usable(blocks):
        of_mlp, count = weights.in_memory(), flat.shape[1]
        kernels.in_parts(
            count, lambda start, stop: kernels.call("pool", len(flat), count, start, stop, flat, *of_mlp, out)
        )
        return out.view(blocks.shape[1:])
    bounded = weights.bounded()
    scratch = [flat.new_empty(len(flat), _piece_size(flat)) for _ in range(2)]
    for piece, work, eta, pooled in _pieces(flat, scratch, out):
        weights.logits(piece, work, eta)
        e = torch.exp(eta if bounded else eta.sub_(eta.amax(0)), out=eta)
        torch.sum(torch.mul(e, piece, out=work), 0, out=pooled).div_(e.sum(0))
    return out.view(blocks.shape[1:])


def choose_from_logits(logits: Tensor, uniform: Tensor, through: bool) -> Chosen:
    """The same where an encoder gives eta itself, [P, K, h, w, B]; it pools by other means, `pooled` is the index."""
    log_q = logits.contiguous().log_softmax(0)
    q = log_q.exp()
    with torch.no_grad():
        reached = q[:-1].cumsum(0)  # not the last place, so that rounding never loses a block
        index = (reached <= uniform).sum(0).to(q.dtype)
    token = q - q.detach() if through else q.new_zeros(()).expand(q.shape)
    log_q_z = log_q.gather(0, index.long()[None])[0]
    return Chosen(Drawn(index, token), index, (q * log_q).sum(0), log_q_z)


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
