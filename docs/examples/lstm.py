"""An LSTM cell with RMSNorm on the state: the state may grow, what leaves it may not."""

import torch
from normkit.torch import RMSNorm
from torch import Tensor, nn


class NormalisedLSTMCell(nn.Module):
    """torch.nn.LSTMCell, but h = o · tanh(RMSNorm(c)), after c has been updated."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.gates = nn.Linear(inputs + hidden, 4 * hidden)
        self.norm = RMSNorm(hidden)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """x of shape (batch, inputs), h and c of (batch, hidden); the new h and c."""
        h, c = state
        i, f, g, o = self.gates(torch.cat([x, h], dim=-1)).chunk(4, dim=-1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * self.norm(c).tanh(), c


def main(steps: int = 200) -> dict[str, float]:
    """Count: the target is the running sum of the inputs' first feature.

    Returns the loss before and after training, and the largest root mean square of what the tanh
    is given, which the norm keeps at 1 however long the sequence is.
    """
    torch.manual_seed(0)
    cell, readout = NormalisedLSTMCell(2, 16), nn.Linear(16, 1)
    optimiser = torch.optim.Adam([*cell.parameters(), *readout.parameters()], 1e-2)
    losses, largest = [], 0.0
    for _ in range(steps):
        x = torch.randn(32, 12, 2)
        h = c = torch.zeros(32, 16)
        guesses = []
        for t in range(x.shape[1]):
            h, c = cell(x[:, t], (h, c))
            guesses.append(readout(h))
        loss = (torch.cat(guesses, dim=1) - x[..., 0].cumsum(1) / 4).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
        given = cell.norm(c) / cell.norm.weight
        largest = max(largest, given.square().mean(-1).sqrt().max().item())
    return {"first loss": losses[0], "last loss": losses[-1], "largest": largest}


if __name__ == "__main__":
    print(main())
