"""Time of a training step of PyTorch in eager mode, of the models that `run` trains: `torch_step.py deepfm|resnet20 SAMPLES`.

Prints `MODEL: TIME ms`, or `skipped, not here: REASON`.
"""

import sys
import time

try:
    import torch
    from torch import nn
except ImportError as error:
    print(f"skipped, not here: PyTorch cannot be loaded ({error})")
    sys.exit(0)
if not torch.cuda.is_available():
    print("skipped, not here: this PyTorch has no GPU")
    sys.exit(0)

FIELDS, ROWS, EMBEDDING, HIDDEN = 39, 1 << 14, 8, (64, 32)
WARM, TIMES = 20, 200


class DeepFm(nn.Module):
    """The sizes and the formula of `antdt-burn/src/model/deepfm.rs`."""

    def __init__(self):
        super().__init__()
        self.rows = nn.Embedding(FIELDS * ROWS, EMBEDDING + 1, sparse=True)
        layers, width = [], FIELDS * EMBEDDING
        for units in HIDDEN:
            layers += [nn.Linear(width, units), nn.ReLU()]
            width = units
        self.deep = nn.Sequential(*layers, nn.Linear(width, 1))

    def forward(self, ids):
        rows = self.rows(ids)
        embedded, first = rows[..., :EMBEDDING], rows[..., EMBEDDING:].sum(1)
        total = embedded.sum(1)
        pairs = 0.5 * (total * total - (embedded * embedded).sum(1)).sum(1, keepdim=True)
        return (first + pairs + self.deep(embedded.flatten(1))).squeeze(1)


class Block(nn.Module):
    def __init__(self, before, width, stride):
        super().__init__()
        self.first = self.normed(before, width, 3, stride)
        self.second = self.normed(width, width, 3, 1)
        changes = (before, stride) != (width, 1)
        self.shortcut = self.normed(before, width, 1, stride) if changes else nn.Identity()

    @staticmethod
    def normed(before, width, kernel, stride):
        convolution = nn.Conv2d(before, width, kernel, stride, kernel // 2, bias=False)
        return nn.Sequential(convolution, nn.BatchNorm2d(width))

    def forward(self, x):
        return torch.relu(self.second(torch.relu(self.first(x))) + self.shortcut(x))


def resnet20():
    """Three stages of three blocks, 16, 32 and 64 channels."""
    layers, before = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()], 16
    for width in (16, 32, 64):
        for block in range(3):
            layers.append(Block(before, width, 2 if width != before else 1))
            before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def main():
    name, samples = sys.argv[1], int(sys.argv[2])
    device = torch.device("cuda:0")
    # As in the jobs: 32-bit floats throughout.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    if name == "deepfm":
        model = DeepFm().to(device)
        dense = [p for n, p in model.named_parameters() if not n.startswith("rows")]
        optimizers = [
            torch.optim.Adagrad(dense, lr=0.02),
            torch.optim.Adagrad([model.rows.weight], lr=0.02),
        ]
        host = torch.randint(0, FIELDS * ROWS, (samples, FIELDS)), torch.rand(samples).round()
        loss_of = nn.BCEWithLogitsLoss()
    else:
        model = resnet20().to(device)
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)]
        host = torch.rand(samples, 3, 32, 32), torch.randint(0, 10, (samples,))
        loss_of = nn.CrossEntropyLoss()
    host = [part.pin_memory() for part in host]

    def step():
        # A batch comes from the host in each step, as it does in a job.
        inputs, labels = (part.to(device, non_blocking=True) for part in host)
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        loss_of(model(inputs), labels).backward()
        for optimizer in optimizers:
            optimizer.step()

    for _ in range(WARM):
        step()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(TIMES):
        step()
    torch.cuda.synchronize()
    print(f"{name}: {(time.perf_counter() - began) * 1000 / TIMES:.3f} ms")


main()
