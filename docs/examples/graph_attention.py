"""A graph attention layer with RMSNorm on the nodes' features, in plain torch."""

import torch
from normkit.torch import RMSNorm
from torch import Tensor, nn


class GraphAttention(nn.Module):
    """x + what each node's neighbours say, weighted by softmax over them (Veličković et al. 2018).

    The norm works on each node alone, so a node with many neighbours, or a larger graph in the same
    batch, changes nothing for another. BatchNorm would mix them.
    """

    def __init__(self, features: int) -> None:
        super().__init__()
        self.norm = RMSNorm(features)
        self.value = nn.Linear(features, features, bias=False)
        self.score = nn.Linear(2 * features, 1, bias=False)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        """x of shape (nodes, features); edges of shape (2, edges): from and to."""
        source, target = edges
        h = self.value(self.norm(x))
        pair = torch.cat([h[source], h[target]], dim=-1)
        weight = nn.functional.leaky_relu(self.score(pair).squeeze(-1), 0.2).exp()
        total = torch.zeros(len(x)).index_add(0, target, weight)
        message = weight[:, None] / total[target, None] * h[source]
        return x + torch.zeros_like(x).index_add(0, target, message)


def main(steps: int = 80) -> dict[str, float]:
    """Which of two clubs a node is in, told for one node of each; the share found out.

    Each club is a ring with chords; one edge joins the two.
    """
    torch.manual_seed(0)
    size = 12
    ring = [(i, (i + step) % size) for i in range(size) for step in (1, 3)]
    pairs = [*ring, *((a + size, b + size) for a, b in ring), (0, size)]
    edges = torch.tensor(
        [*pairs, *((b, a) for a, b in pairs), *((i, i) for i in range(2 * size))]
    ).T
    clubs = torch.arange(2 * size) // size
    told = torch.tensor([size // 2, size + size // 2])

    embedding = nn.Parameter(torch.randn(2 * size, 8))
    layers = nn.ModuleList([GraphAttention(8) for _ in range(3)])
    readout = nn.Sequential(RMSNorm(8), nn.Linear(8, 2))
    parameters = [*layers.parameters(), *readout.parameters()]
    optimiser = torch.optim.Adam(parameters, 1e-2)

    def logits() -> Tensor:
        x = embedding
        for layer in layers:
            x = layer(x, edges)
        return readout(x)

    for _ in range(steps):
        loss = nn.functional.cross_entropy(logits()[told], clubs[told])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    share = (logits().argmax(-1) == clubs).float().mean().item()
    return {"loss": loss.item(), "share": share}


if __name__ == "__main__":
    print(main())
