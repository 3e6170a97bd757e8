"""Table 3, VggNet+RNN and GoogLeNet+RNN: show and tell (Vinyals, Toshev, Bengio and Erhan, 2015).

    x_-1 = W_i f                     f: pooled features of a network that was pretrained on ImageNet and stays as it is
    x_t  = W_e y_t                   y_0 a start symbol
    h_t, c_t = LSTM(x_t, h_t-1, c_t-1)        from zeros; the image is seen once, at t = -1
    y_t+1 ~ softmax(V h_t)

512 units and embeddings, dropout on features, words and outputs. The published network was GoogLeNet, at first fixed;
here it is whatever backbone the features are of, and is never fine-tuned.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from semisight.baselines.captioner import ByLikelihood, Standardised
from semisight.model.heads.captions import CaptionHead, State


class ShowAndTell(ByLikelihood, CaptionHead):
    """Our caption head with another start: its map of the code is W_i."""

    def __init__(
        self,
        n_features: int,
        vocab_size: int,
        size: int = 512,
        dropout: float = 0.5,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(
            n_features,
            vocab_size,
            hidden_size=size,
            embedding_size=size,
            cell="lstm",
            start="wide",
            dropout=dropout,
            generator=generator,
        )
        with torch.no_grad():
            self.code.weight.normal_(0, n_features**-0.5, generator=generator)
        self.first = nn.Parameter(torch.zeros(size))  # the embedding of y_0
        self.scale = Standardised(n_features)

    def see(self, images: Tensor) -> Tensor:
        return self.scale(images).flatten(1)

    def start(self, s: Tensor) -> State:
        w_ih, _, b_ih, _ = self.recurrent.all_weights[0]
        image = self.code(self.dropout(s))
        state = State(torch.zeros_like(image), torch.zeros_like(image))
        for x in (image, self.first.expand_as(image)):
            state = self.advance(F.linear(x, w_ih, b_ih), state)
        return state
