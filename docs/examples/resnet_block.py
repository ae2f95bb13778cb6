"""A ResNet block on images with channels first: GroupNorm, then RMSNorm over the channels."""

import torch
from normkit.torch import RMSNorm
from torch import Tensor, nn


class Block(nn.Module):
    """x + conv(relu(norm(conv(x)))): GroupNorm over a group's pixels, RMSNorm over a pixel's channels.

    ``axis=1`` normalises (batch, channels, height, width) where it lies: nothing is transposed.
    """

    def __init__(self, channels: int, groups: int = 4) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norms = nn.Sequential(nn.GroupNorm(groups, channels), RMSNorm(channels, axis=1))
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """x of shape (batch, channels, height, width)."""
        return x + self.second(self.norms(self.first(x)).relu())


def main(steps: int = 60) -> dict[str, float]:
    """Tell images with a bright row from images with a bright column; the loss before and after."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        Block(8),
        Block(8),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 2),
    )
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for _ in range(steps):
        images, labels = 0.3 * torch.randn(32, 1, 8, 8), torch.randint(2, (32,))
        lines = torch.randint(8, (32,))
        for image, label, line in zip(images, labels, lines, strict=True):
            (image[0] if label == 0 else image[0].T)[line] += 1
        loss = nn.functional.cross_entropy(model(images), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return {"first loss": losses[0], "last loss": losses[-1]}


if __name__ == "__main__":
    print(main())
