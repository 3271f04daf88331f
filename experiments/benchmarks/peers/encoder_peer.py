"""Times forward and backward passes of a PyTorch encoder stack, a round for every line of standard input.

The stacks have the norms, skips and feed-forward networks of flaxnmt's, in the form that is natural to PyTorch.
"""

import argparse
import time
from importlib.metadata import version

import torch
from rounds import serve
from torch import nn


class Mixing(nn.Module):
    """x + f(LN(x)), or f(LN(x)) without a skip connection."""

    def __init__(self, d_model: int, function: nn.Module, skip: bool = True):
        super().__init__()
        self.norm, self.function, self.skip = nn.LayerNorm(d_model), function, skip

    def forward(self, x):
        y = self.function(self.norm(x))
        return x + y if self.skip else y


class Recurrence(nn.Module):
    def __init__(self, d_model: int):
        super().__init__()
        self.lstm = nn.LSTM(d_model, d_model, batch_first=True)

    def forward(self, x):
        return self.lstm(x)[0]


class GatedConvolution(nn.Module):
    """Channels first throughout, as Conv1d has them."""

    def __init__(self, d_model: int):
        super().__init__()
        self.convolution = nn.Conv1d(d_model, 2 * d_model, 3, padding=1)

    def forward(self, x):
        return (x + nn.functional.glu(self.convolution(x), dim=1)) * 0.5**0.5


class Fourier(nn.Module):
    def forward(self, x):
        return torch.fft.fft2(x).real


def feed_forward(d_model: int, hidden: int) -> nn.Module:
    return Mixing(d_model, nn.Sequential(nn.Linear(d_model, hidden), nn.ReLU(), nn.Linear(hidden, d_model)))


def layer(kind: str, options) -> nn.Module:
    d_model, hidden = options.d_model, options.feed_forward
    if kind == "attention":
        return nn.TransformerEncoderLayer(
            d_model, options.heads, hidden, dropout=0.0, batch_first=True, norm_first=True
        )
    if kind == "lstm":
        return Mixing(d_model, Recurrence(d_model), skip=False)
    if kind == "convs2s":
        return GatedConvolution(d_model)
    if kind == "products":
        return nn.Sequential(nn.Linear(d_model, hidden, bias=False), nn.Linear(hidden, d_model, bias=False))
    mixing = Mixing(d_model, Fourier())
    return mixing if kind == "transform" else nn.Sequential(mixing, feed_forward(d_model, hidden))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    kinds = ("attention", "lstm", "convs2s", "fnet", "transform", "products")
    parser.add_argument("--kind", choices=kinds, required=True)
    for name in ("layers", "d-model", "heads", "feed-forward", "rows", "length", "repetitions", "threads"):
        parser.add_argument(f"--{name}", type=int, required=True)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    stack = nn.Sequential(*(layer(options.kind, options) for _ in range(options.layers)))
    shape = (options.rows, options.length, options.d_model)
    if options.kind == "convs2s":
        shape = (options.rows, options.d_model, options.length)
    x = torch.randn(shape, requires_grad=True)
    upstream = torch.randn(shape)

    def step() -> float:
        stack.zero_grad()
        x.grad = None
        start = time.perf_counter()
        stack(x).backward(upstream)
        return time.perf_counter() - start

    for _ in range(2):
        step()
    versions = {"torch": version("torch")}
    serve(lambda: {"seconds": [step() for _ in range(options.repetitions)], "versions": versions})


if __name__ == "__main__":
    main()
