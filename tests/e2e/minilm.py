"""all-MiniLM-L6-v2 with normkit's norms: the same embeddings."""

from collections.abc import Iterator

import normkit.torch
import torch
from e2e_page import Bar
from weights import minilm

TITLE = "all-MiniLM-L6-v2"
_SENTENCES = (
    "The cat eats fish.",
    "A feline is having seafood for dinner.",
    "Stock markets fell sharply on Monday.",
    "How do I replace a layer of a trained model?",
    "Normalisation puts every row on a sphere.",
    "Short.",
)


def run() -> Iterator[Bar]:
    """Mean-pooled embeddings, before and after."""
    model, tokenizer = minilm()
    batch = tokenizer(list(_SENTENCES), return_tensors="pt", padding=True)

    def embeddings() -> torch.Tensor:
        with torch.no_grad():
            hidden = model(**batch).last_hidden_state.double()
        mask = batch["attention_mask"][..., None]
        pooled = (hidden * mask).sum(1) / mask.sum(1)
        return pooled / pooled.norm(dim=-1, keepdim=True)

    before = embeddings()
    assert before[0] @ before[1] > before[0] @ before[2] + 0.2  # the weights are the trained ones
    report = normkit.torch.replace_norms(model, sample=dict(batch))
    yield Bar("norms", len(report.rows))
    yield Bar("replaced", len(report.replaced), "=", len(report.rows))
    yield Bar("convention", report.rows[0].convention)
    after = embeddings()
    # of unit vectors: 1 - cos = |a - b|^2 / 2, where a . b itself has no digits left
    distance = (before - after).square().sum(-1).max().item() / 2
    yield Bar("largest 1 - cosine of an embedding", distance, "at most", 1e-6)
    report.undo()
    yield Bar("elements that undo leaves changed", int((before != embeddings()).sum()), "=", 0)
