"""Train a small GPT with LayerNorm and with RMSNorm, in torch and in Flax, and compare.

``make train`` runs it for some minutes on the CPU and writes ``train_gpt.json``, and from it
``train_gpt.png`` and the table of ``docs/examples.md``; with ``--draw`` only the last two. All four start from the same weights and read the same batches, one
step after the other in turn, so that their times compare.
"""

import hashlib
import json
import platform
import re
import sys
import time
from pathlib import Path
from typing import Any

import gpt_flax
import gpt_torch
import jax.numpy as jnp
import normkit.flax
import normkit.torch
import numpy as np
import port
import torch
from flax import nnx
from rich.progress import track

HERE = Path(__file__).parent
RESULT = HERE / "train_gpt.json"
PICTURE = HERE / "train_gpt.png"
PAGE = HERE.parent / "examples.md"
TEXT = (HERE / "sonnets.txt").read_text(encoding="utf-8")

NORMS = {
    "LayerNorm": (normkit.torch.LayerNorm, normkit.flax.LayerNorm),
    "RMSNorm": (normkit.torch.RMSNorm, normkit.flax.RMSNorm),
}
BATCH, LEARNING_RATE = 16, 1e-3
_WARM_UP = 10  # steps not timed: compilation, caches


def train(size: gpt_torch.Size, steps: int, seed: int) -> dict[str, dict[str, list[float]]]:
    """Losses and seconds of each step, by framework and norm, such as "torch LayerNorm"."""
    trainers: dict[str, Any] = {}
    for name, (torch_norm, flax_norm) in NORMS.items():
        torch.manual_seed(seed)
        model = gpt_torch.GPT(size, torch_norm)
        twin = gpt_flax.GPT(size, flax_norm, nnx.Rngs(0))
        port.load(twin, model.state_dict())
        trainers[f"torch {name}"] = gpt_torch.Trainer(model, LEARNING_RATE)
        trainers[f"flax {name}"] = gpt_flax.Trainer(twin, LEARNING_RATE)

    letters = sorted(set(TEXT))
    tokens = np.array([letters.index(letter) for letter in TEXT])
    rng = np.random.default_rng(seed)
    runs: dict[str, dict[str, list[float]]] = {
        name: {"loss": [], "seconds": []} for name in trainers
    }
    for _ in track(range(steps), f"seed {seed}", disable=not sys.stderr.isatty()):
        starts = rng.integers(0, len(tokens) - size.context, BATCH)
        batch = np.stack([tokens[start : start + size.context + 1] for start in starts])
        for name, trainer in trainers.items():
            array = torch.tensor if name.startswith("torch") else jnp.asarray
            inputs, targets = array(batch[:, :-1]), array(batch[:, 1:])
            started = time.perf_counter()
            runs[name]["loss"].append(trainer(inputs, targets))
            runs[name]["seconds"].append(time.perf_counter() - started)
    return runs


def apart(runs: dict[str, dict[str, list[float]]], norm: str, steps: int) -> float:
    """The largest relative difference of torch's loss and Flax's over the first ``steps``."""
    one, two = (np.array(runs[f"{host} {norm}"]["loss"][:steps]) for host in ("torch", "flax"))
    return float((abs(one - two) / one).max())


def measure(steps: int = 300, seeds: int = 3) -> dict[str, Any]:
    """All runs, as plain data."""
    torch.set_num_threads(1)  # times compare better where nothing waits for a busy core
    size = gpt_torch.Size(vocabulary=len(set(TEXT)))
    runs = [train(size, steps, seed) for seed in range(seeds)]
    result: dict[str, Any] = {
        "made by": "make train",
        "text": {"letters": len(TEXT), "sha256": hashlib.sha256(TEXT.encode()).hexdigest()},
        "size": size._asdict(),
        "batch": BATCH,
        "learning rate": LEARNING_RATE,
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "torch": torch.__version__,
        "norms": {},
    }
    times = {
        name: np.concatenate([run[name]["seconds"][_WARM_UP:] for run in runs]) for name in runs[0]
    }
    for norm in NORMS:
        result["norms"][norm] = {
            "loss": {
                host: [[round(x, 6) for x in run[f"{host} {norm}"]["loss"]] for run in runs]
                for host in ("torch", "flax")
            },
            "apart in the first 50 steps": [apart(run, norm, 50) for run in runs],
            "apart in all steps": [apart(run, norm, steps) for run in runs],
            "step in ms": {
                host: _quartiles(1e3 * times[f"{host} {norm}"]) for host in ("torch", "flax")
            },
            "step beside LayerNorm": {
                host: _quartiles(times[f"{host} {norm}"] / times[f"{host} LayerNorm"])
                for host in ("torch", "flax")
            },
        }
    return result


def _quartiles(values: Any) -> list[float]:
    return [round(float(q), 3) for q in np.quantile(values, (0.25, 0.5, 0.75))]


def as_text(result: dict[str, Any]) -> str:
    """JSON with each list of numbers on one line."""
    text = json.dumps(result, indent=1)
    return re.sub(r"\[[^][]+\]", lambda numbers: " ".join(numbers[0].split()), text) + "\n"


def table(result: dict[str, Any]) -> str:
    """What came out, as a Markdown table."""
    heads = (
        "",
        "loss of the last 20 steps, torch",
        "the same, Flax",
        "torch and Flax apart, 50 steps",
        "all steps",
        "time of a step, torch",
        "the same, Flax",
    )
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for norm, of in result["norms"].items():
        last = {host: np.array(of["loss"][host])[:, -20:].mean(1) for host in ("torch", "flax")}
        cells = [
            norm,
            *(" ".join(f"{loss:.3f}" for loss in last[host]) for host in last),
            f"{max(of['apart in the first 50 steps']):.1e}",
            f"{max(of['apart in all steps']):.1e}",
            *(f"{of['step beside LayerNorm'][host][1]:.2f}" for host in last),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def with_table(page: str, result: dict[str, Any]) -> str:
    """``page`` with a fresh table between its markers."""
    before, _, rest = page.partition("<!-- training -->\n")
    _, end, after = rest.partition("\n<!-- end -->")
    return f"{before}<!-- training -->\n{table(result)}{end}{after}"


def draw(result: dict[str, Any], path: Path) -> None:
    """The curves of each seed, how far apart the frameworks are, and the step times."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    colours = {"LayerNorm": "tab:blue", "RMSNorm": "tab:orange"}
    figure, (curves, gaps, times) = pyplot.subplots(1, 3, figsize=(12, 3.6), width_ratios=(2, 2, 1))
    for norm, of in result["norms"].items():
        in_torch, in_flax = (np.array(of["loss"][host]) for host in ("torch", "flax"))
        for seed, (one, two) in enumerate(zip(in_torch, in_flax, strict=True)):
            label = norm if seed == 0 else None
            curves.plot(one, color=colours[norm], lw=0.8, label=label and f"{norm}, torch")
            curves.plot(two, color="black", lw=0.8, ls=(0, (1, 4)), label=label and f"{norm}, Flax")
            # 1e-7: what float32 tells apart
            gaps.plot(abs(one - two) / one + 1e-7, color=colours[norm], lw=0.6, label=label)
    curves.set(xlabel="step", ylabel="loss", title="Loss, three seeds")
    gaps.axhline(1e-4, color="black", lw=0.6, ls="--")
    gaps.set(xlabel="step", yscale="log", title="torch and Flax: relative difference of the loss")
    bars = [(host, norm) for host in ("torch", "flax") for norm in result["norms"]]
    middle = [result["norms"][norm]["step in ms"][host][1] for host, norm in bars]
    times.bar(range(len(bars)), middle, color=[colours[norm] for _, norm in bars])
    times.set_xticks(range(len(bars)), [f"{host}\n{norm[:-4]}" for host, norm in bars])
    times.set(title="Median time of a step, ms")
    curves.legend(fontsize=7)
    gaps.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


if __name__ == "__main__":
    if "--draw" not in sys.argv:
        RESULT.write_text(as_text(measure()), encoding="utf-8")
    result = json.loads(RESULT.read_text(encoding="utf-8"))
    draw(result, PICTURE)
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), result), encoding="utf-8")
