"""Trains one MLP on scikit-learn's handwritten digits, with nn.Linear and with every nn.Linear replaced.

    python examples/train_digits.py                # 30 epochs; the plot goes to out/train_digits.png
    python examples/train_digits.py --dtype fp64   # shows that the two learn the same, up to rounding
    python examples/train_digits.py --device cpu   # default: the GPU, where this build has kernels for it
    python examples/train_digits.py --quick        # seconds, for tests

Same seed, same batches; the two take turns at every batch, so that their times compare. Prints accuracies,
the largest difference of the learned weights and the time spent in forward and backward; plots the losses and
each layer's speed.
"""

import argparse
import copy
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from torch_tiledmm import replace_linear
from torch_tiledmm.dispatch import DTYPES, PICKS, build_info
from torch_tiledmm.testing.timing import time_arms, time_on_gpu

NUM_CLASSES = 10
COLORS = {"nn.Linear": "#9aa5b1", "TiledLinear": "#e4572e"}


@dataclass
class History:
    losses: list[float] = field(default_factory=list)  # mean of each epoch
    forward_seconds: float = 0.0
    backward_seconds: float = 0.0


def load_data(
    dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images (n, 64) scaled to [0, 1] and labels (n,), four fifths for training, one for testing."""
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=generator)
    images = torch.from_numpy(digits.data).to(dtype)[order].to(device) / 16
    labels = torch.from_numpy(digits.target)[order].to(device)
    split = len(labels) * 4 // 5
    return images[:split], labels[:split], images[split:], labels[split:]


def make_model(num_features: int, hidden: int, dtype: torch.dtype) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(num_features, hidden, dtype=dtype),
        nn.ReLU(),
        nn.Linear(hidden, hidden, dtype=dtype),
        nn.ReLU(),
        nn.Linear(hidden, NUM_CLASSES, dtype=dtype),
    )


def seconds_of(device: torch.device) -> float:
    """The time, once the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def train(
    models: dict[str, nn.Module],
    images: Tensor,
    labels: Tensor,
    epochs: int,
    batch: int,
    generator: torch.Generator,
) -> dict[str, History]:
    """Trains all models on the same batches; prints the losses as it goes."""
    optimizers = {name: torch.optim.SGD(model.parameters(), 0.1, momentum=0.9) for name, model in models.items()}
    histories = {name: History() for name in models}
    for epoch in range(epochs):
        totals = dict.fromkeys(models, 0.0)
        for rows in torch.randperm(len(labels), generator=generator).to(labels.device).split(batch):
            for name, model in models.items():
                optimizers[name].zero_grad()
                start = seconds_of(images.device)
                logits = model(images[rows])
                loss = nn.functional.cross_entropy(logits, labels[rows])
                middle = seconds_of(images.device)
                loss.backward()
                histories[name].forward_seconds += middle - start
                histories[name].backward_seconds += seconds_of(images.device) - middle
                optimizers[name].step()
                totals[name] += loss.item() * len(rows)
        for name, history in histories.items():
            history.losses.append(totals[name] / len(labels))
        losses = ", ".join(f"{name} {history.losses[-1]:.4f}" for name, history in histories.items())
        is_last = epoch + 1 == epochs
        end = "\r" if sys.stdout.isatty() and not is_last else "\n"
        print(f"epoch {epoch + 1:3d}/{epochs}  loss: {losses}", end=end, flush=True)
    return histories


def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    with torch.no_grad():
        return (model(images).argmax(1) == labels).double().mean().item()


def layer_speeds(models: dict[str, nn.Module], batch: int, seconds: float) -> dict[str, dict[str, float]]:
    """GFLOP/s of each linear layer, forward and backward together: {shape: {name of the model: speed}}."""
    speeds = {}
    for layers in zip(*models.values(), strict=True):
        if not isinstance(layers[0], nn.Linear):
            continue
        weight = layers[0].weight
        (out_features, in_features), like = weight.shape, {"dtype": weight.dtype, "device": weight.device}
        input = torch.randn(batch, in_features, **like, requires_grad=True)
        grad = torch.randn(batch, out_features, **like)
        arms = {
            name: lambda layer=layer, input=input, grad=grad: layer(input).backward(grad)
            for name, layer in zip(models, layers, strict=True)
        }
        time_them = time_on_gpu if like["device"].type == "cuda" else time_arms
        num_flops = 3 * 2 * batch * in_features * out_features
        speeds[f"{in_features} → {out_features}"] = {
            name: num_flops / timing.median / 1e9 for name, timing in time_them(arms, seconds=seconds).items()
        }
    return speeds


def plot(
    path: Path, histories: dict[str, History], speeds: dict[str, dict[str, float]], batch: int, where: str
) -> None:
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for (name, history), width in zip(histories.items(), (6, 1.8), strict=True):
        left.semilogy(range(1, len(history.losses) + 1), history.losses, label=name, lw=width, color=COLORS[name])
    left.set(xlabel="epoch", ylabel="training loss", title="Training on the digits: same seed, same batches")

    for name, offset in zip(histories, (-0.2, 0.2), strict=True):
        values = [of_layer[name] for of_layer in speeds.values()]
        bars = right.bar([i + offset for i in range(len(values))], values, 0.38, label=name, color=COLORS[name])
        references = [of_layer["nn.Linear"] for of_layer in speeds.values()]
        labels = [
            f"{value:.0f}" if name == "nn.Linear" else f"{value:.0f} ({value / reference:.2f}x)"
            for value, reference in zip(values, references, strict=True)
        ]
        right.bar_label(bars, labels, padding=2)
    right.set_xticks(range(len(speeds)), speeds)
    right.set(
        xlabel=f"layer, at batch {batch} on {where}",
        ylabel="GFLOP/s, forward + backward",
        title="Speed of each layer",
    )
    right.margins(y=0.12)
    for axes in (left, right):
        axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not positive")
    return value


def main() -> None:
    parser = argparse.ArgumentParser(description="one MLP, with nn.Linear and with TiledLinear")
    parser.add_argument("--epochs", type=positive, help="default: 30")
    parser.add_argument("--hidden", type=positive, help="default: 512")
    parser.add_argument("--batch", type=positive, default=128)
    parser.add_argument("--dtype", choices=("fp32", "fp64"), default="fp32")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=positive, help="default: torch's")
    parser.add_argument("--device", choices=PICKS, default="auto", help="auto: the GPU, where it can be used")
    parser.add_argument("--out", type=Path, default=Path("out/train_digits.png"), help="the plot")
    parser.add_argument("--quick", action="store_true", help="few epochs of a small model")
    args = parser.parse_args()
    epochs, hidden = args.epochs or (3 if args.quick else 30), args.hidden or (64 if args.quick else 512)
    if args.threads:
        torch.set_num_threads(args.threads)
    dtype, generator = DTYPES[args.dtype], torch.Generator().manual_seed(args.seed)
    torch.manual_seed(args.seed)
    try:
        machine = build_info().pick(args.device)
    except ValueError as error:
        parser.error(str(error))
    device, threads = torch.device(machine.device), torch.get_num_threads()
    where = machine.name if device.type == "cuda" else f"{threads} thread{'s' * (threads != 1)} of {machine.name}"
    print(f"device {device}: {where}")

    train_images, train_labels, test_images, test_labels = load_data(dtype, device, generator)
    linear = make_model(train_images.shape[1], hidden, dtype).to(device)
    tiled = copy.deepcopy(linear)
    print(replace_linear(tiled))
    models = {"nn.Linear": linear, "TiledLinear": tiled}
    histories = train(models, train_images, train_labels, epochs, args.batch, generator)

    print(f"\n{'':12s}{'train accuracy':>16s}{'test accuracy':>16s}{'forward s':>12s}{'backward s':>12s}")
    for name, model in models.items():
        history = histories[name]
        print(
            f"{name:12s}{accuracy(model, train_images, train_labels):16.4f}"
            f"{accuracy(model, test_images, test_labels):16.4f}"
            f"{history.forward_seconds:12.3f}{history.backward_seconds:12.3f}"
        )
    pairs = list(zip(linear.parameters(), tiled.parameters(), strict=True))
    difference = max((a - b).abs().max().item() for a, b in pairs)
    largest = max(a.abs().max().item() for a, _ in pairs)
    print(f"\nlargest difference of the learned weights: {difference:.1e} (largest weight: {largest:.2f})")

    speeds = layer_speeds(models, args.batch, seconds=0.05 if args.quick else 1.0)
    for shape, of_layer in speeds.items():
        print(f"layer {shape:12s}" + "".join(f"{name:>14s} {speed:6.1f} GFLOP/s" for name, speed in of_layer.items()))
    plot(args.out, histories, speeds, args.batch, where)
    print(f"plot: {args.out}")


if __name__ == "__main__":
    main()
