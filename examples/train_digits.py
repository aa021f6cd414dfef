"""Trains one MLP on scikit-learn's handwritten digits twice: with nn.Linear, and with every nn.Linear replaced.

    python examples/train_digits.py                # 30 epochs, plot in out/train_digits.png
    python examples/train_digits.py --quick

Same seed, same data, same order of batches. Prints the loss on the way, then accuracies, the largest difference of the
learned weights, and forward and backward time of both; plots the loss curves and the speed of each layer's shape.
"""

import argparse
import copy
import time
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn

from torch_tiledmm import replace_linear
from torch_tiledmm.testing.timing import time_arms

CLASSES = 10


def load_data(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Images (n, 64) scaled to [0, 1] and labels (n,), split 80 : 20 into training and test data."""
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(seed))
    images = torch.from_numpy(digits.data).float()[order] / 16
    labels = torch.from_numpy(digits.target)[order]
    split = len(labels) * 4 // 5
    return images[:split], labels[:split], images[split:], labels[split:]


def make_model(features: int, hidden: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, CLASSES)
    )


def accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    with torch.no_grad():
        return (model(images).argmax(1) == labels).double().mean().item()


def train(name: str, model: nn.Module, images, labels, *, epochs: int, batch: int, seed: int) -> dict:
    """Loss per epoch, and seconds spent in forward and in backward."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(seed)
    result = {"losses": [], "forward": 0.0, "backward": 0.0}
    for epoch in range(epochs):
        total = 0.0
        for rows in torch.randperm(len(labels), generator=generator).split(batch):
            optimizer.zero_grad()
            start = time.perf_counter()
            loss = nn.functional.cross_entropy(model(images[rows]), labels[rows])
            middle = time.perf_counter()
            loss.backward()
            result["backward"] += time.perf_counter() - middle
            result["forward"] += middle - start
            optimizer.step()
            total += loss.item() * len(rows)
        result["losses"].append(total / len(labels))
        print(f"\r{name:12s} epoch {epoch + 1:3d}/{epochs}  loss {result['losses'][-1]:.4f}", end="", flush=True)
    print()
    return result


def layer_speeds(model: nn.Module, tiled: nn.Module, batch: int) -> list[tuple[str, float, float]]:
    """(shape, GFLOP/s of nn.Linear, GFLOP/s of TiledLinear) of each linear layer, forward and backward."""
    speeds = []
    for reference, layer in zip(model, tiled, strict=True):
        if not isinstance(reference, nn.Linear):
            continue
        x = torch.randn(batch, reference.in_features, requires_grad=True)
        grad = torch.randn(batch, reference.out_features)
        timings = time_arms(
            {
                "linear": lambda layer=reference, x=x, grad=grad: layer(x).backward(grad),
                "tiled": lambda layer=layer, x=x, grad=grad: layer(x).backward(grad),
            },
            seconds=0.3,
        )
        flops = 6 * batch * reference.in_features * reference.out_features
        speeds.append(
            (
                f"{batch}x{reference.in_features}\nto {reference.out_features}",
                *(flops / timings[arm].median / 1e9 for arm in ("linear", "tiled")),
            )
        )
    return speeds


def plot(path: Path, results: dict[str, dict], speeds: list[tuple[str, float, float]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4), layout="constrained")
    styles = {"nn.Linear": {"linewidth": 5, "alpha": 0.35}, "TiledLinear": {"linewidth": 1.5}}
    for name, result in results.items():
        epochs = range(1, len(result["losses"]) + 1)
        left.semilogy(epochs, result["losses"], label=name, **styles[name])
    left.set(xlabel="epoch", ylabel="training loss", title="Same seed, same curve")
    left.legend()
    for offset, arm in ((-0.2, 1), (0.2, 2)):
        bars = right.bar([i + offset for i in range(len(speeds))], [speed[arm] for speed in speeds], 0.4)
        bars.set_label(list(results)[arm - 1])
        right.bar_label(bars, fmt="%.0f", fontsize=8)
    right.set_xticks(range(len(speeds)), [speed[0] for speed in speeds])
    right.set(ylabel="GFLOP/s, forward + backward", title="Speed of each layer")
    right.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description="the same MLP with nn.Linear and with TiledLinear")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, help="default: torch's")
    parser.add_argument("--out", type=Path, default=Path("out/train_digits.png"))
    parser.add_argument("--quick", action="store_true", help="3 epochs of a small model")
    args = parser.parse_args()
    if args.quick:
        args.epochs, args.hidden = 3, 64
    if args.threads:
        torch.set_num_threads(args.threads)

    train_images, train_labels, test_images, test_labels = load_data(args.seed)
    torch.manual_seed(args.seed)
    linear = make_model(train_images.shape[1], args.hidden)
    tiled = copy.deepcopy(linear)
    print(replace_linear(tiled))
    models = {"nn.Linear": linear, "TiledLinear": tiled}
    results = {
        name: train(name, model, train_images, train_labels, epochs=args.epochs, batch=args.batch, seed=args.seed)
        for name, model in models.items()
    }

    print(f"\n{'':12s} {'train acc':>10s} {'test acc':>10s} {'forward s':>10s} {'backward s':>10s}")
    for name, model in models.items():
        accuracies = accuracy(model, train_images, train_labels), accuracy(model, test_images, test_labels)
        times = results[name]["forward"], results[name]["backward"]
        print(f"{name:12s} {accuracies[0]:10.4f} {accuracies[1]:10.4f} {times[0]:10.3f} {times[1]:10.3f}")
    difference = max(
        (a - b).abs().max().item() for a, b in zip(linear.parameters(), tiled.parameters(), strict=True)
    )
    print(f"largest difference of a learned weight: {difference:.2e}")
    plot(args.out, results, layer_speeds(linear, tiled, args.batch))
    print(f"plot: {args.out}")


if __name__ == "__main__":
    main()
