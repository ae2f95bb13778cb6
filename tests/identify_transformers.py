"""`normkit.identify` on every norm class of the installed transformers: `make transformers`.

Each class is a black box: eps, offset and all fields are read off. The preset that is named is
then compared with the class on inputs that no probe used. The table goes to
tests/data/identify_transformers.json, every miss with its reason.
"""

import functools
import json
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import transformers
from transformers_norms import NormClass, norm_classes

import normkit
from normkit._identify._forms import choose_form
from normkit._identify._host import attempt, host_of
from normkit._identify._probes import cast
from normkit.testing import ulp

WIDTH = 64
ROWS = 96
TABLE = Path(__file__).parent / "data" / "identify_transformers.json"
PAIRS = tuple(
    (x, scale)
    for x in ("float32", "bfloat16", "float16")
    for scale in ("float32", "bfloat16", "float16")
)
# Criterion on held-out inputs. What differs is the order of the class's float32 sum, which moves
# an element by up to 6 ULP of the row's largest element, measured in ULPs of the narrowest dtype
# that the result has gone through; in a half dtype it flips single roundings, in less than 0.2 %.
MAX_ULP_FLOAT32 = 6.0
MAX_ULP_HALF = 1.01
MAX_SHARE_HALF = 2e-3

# What identify is right not to name.
KNOWN = {
    "AutoformerLayernorm": "takes the mean over the sequence off its result",
    "AXK2GatedRMSNorm": "gates its result by an MLP of it",
    "DoryL2Norm": "L2 normalisation: divides by the root of the sum",
    "Qwen2_5_OmniAdaLayerNormZero": "needs a conditioning input",
    "Qwen2_5_OmniAdaLayerNormZero_Final": "needs a conditioning input",
    "VibeVoiceDiffusionHeadAdaLayerNorm": "needs a conditioning input, and a configuration",
    "WavTokenizerAdaLayerNorm": "needs a conditioning id, and a configuration",
    "EsmFoldLayerNorm": "casts parameters to bfloat16 for bfloat16 x only, not for float16",
    "EsmFold2AdaptiveLayerNorm": "scale and bias come from a second input",
    "HYV4UnweightedRMSNorm": "returns the factor r alone",
    "HYV4VLUnweightedRMSNorm": "returns the factor r alone",
    "NoNorm": "x w + b",
    "Phi4MultimodalAudioMeanVarianceNormLayer": "mean and deviation are fixed parameters",
    "PocketTTSTimestepNorm": "unbiased variance, of x not centred",
    "StableLmLayerNormPerHead": "a LayerNorm for each head, on axis 1",
    "VoxtralRealtimeTextAdaRmsNorm": "an MLP",
}


def judge(norm: NormClass) -> tuple[normkit.Identification, str | None]:
    """What identify says of a class, and where the preset departs on held-out inputs."""
    module = norm.build(WIDTH)
    found = normkit.identify(module, width=WIDTH)
    return found, held_out(module, found)


def held_out(module: Any, found: normkit.Identification) -> str | None:
    """None if the preset agrees with the class on other inputs, else where it departs."""
    assert found.convention is not None
    host = host_of(module)
    assert host is not None
    f, _ = choose_form(host.subject(module, WIDTH), WIDTH)
    assert f is not None
    for x_dtype, scale_dtype in PAIRS:
        for name, x, scale, bias in _inputs(x_dtype, scale_dtype, 1 - f.neutral):
            with np.errstate(all="ignore"):
                theirs = attempt(functools.partial(f, x, scale, bias))
            if isinstance(theirs, Exception):  # the class takes no such pair
                continue
            scale, bias = f.parameters(x, scale, bias)
            function = getattr(normkit, str(found.kind))
            ours = function(x, scale, bias, convention=found.convention)
            why = _departs(theirs, ours, _narrowest(found.convention, x, scale, ours))
            if why is not None:
                return f"{name}, x {x_dtype}, scale {scale_dtype}: {why}"
    return None


def _inputs(x_dtype: str, scale_dtype: str, low: float) -> Iterator[tuple[str, Any, Any, Any]]:
    rng = np.random.default_rng(1013)
    shape = (ROWS, WIDTH)
    normal = rng.standard_normal(shape) + 0.3
    sizes = np.exp(rng.uniform(-7, 3, (ROWS, 1)))
    scale = 1 + 0.3 * rng.standard_normal(WIDTH) - low
    bias = 0.2 * rng.standard_normal(WIDTH)
    for name, x in (("rows of many sizes", normal * sizes), ("rows of size 1", normal)):
        yield name, cast(x, x_dtype), cast(scale, scale_dtype), cast(bias, scale_dtype)


def _departs(theirs: Any, ours: Any, unit: str) -> str | None:
    if theirs.dtype != ours.dtype:
        return f"result {theirs.dtype.name}, the preset gives {ours.dtype.name}"
    a, b = theirs.astype(np.float64), ours.astype(np.float64)
    if not np.isfinite(a).all() or not np.isfinite(b).all():
        return "not finite"
    largest = np.maximum(np.abs(b).max(-1, keepdims=True), 1e-30)
    worst = float((np.abs(a - b) / ulp(largest, unit)).max())
    share = float((a != b).mean())
    if worst > (MAX_ULP_FLOAT32 if unit == "float32" else MAX_ULP_HALF):
        return f"{worst:.2f} ULP of the row's largest"
    if unit != "float32" and share > MAX_SHARE_HALF:
        return f"{share:.2%} of the elements differ"
    return None


def _narrowest(convention: Any, x: Any, scale: Any, y: Any) -> str:
    """The narrowest dtype that a value is rounded to on the way: what one flipped rounding moves."""
    dtypes = {y.dtype.name}
    if convention.statistics == "x":
        dtypes.add(x.dtype.name)
    named = {
        "x": x,
        "scale": x if scale is None else scale,
        "scale_if_half": y if scale is None else scale,
    }
    if convention.between in named:
        dtypes.add(named[convention.between].dtype.name)
    order = ("bfloat16", "float16", "float32", "float64")
    return min(dtypes - {"float64"} or {"float32"}, key=order.index)


def entry(norm: NormClass) -> dict[str, Any]:
    """One line of the table."""
    row: dict[str, Any] = {"class": f"{norm.module}:{norm.name}"}
    module = attempt(lambda: norm.build(WIDTH))
    if isinstance(module, Exception):
        return row | {"result": "not buildable", "reason": KNOWN.get(norm.name, _line(module))}
    try:
        found = normkit.identify(module, width=WIDTH)
    except ValueError:
        reason = KNOWN.get(norm.name, "takes no single input of this width")
        return row | {"result": "not callable", "reason": reason}
    row |= {"call": found.call, "eps": found.eps, "eps_place": found.eps_place}
    row |= {"probes": found.probes, "equal_bits": found.equal_bits}
    if not found.presets:
        departs = "; ".join(f"{f.field}: {f.found}" for f in found.findings)
        return row | {"result": "none", "departs": departs, "reason": KNOWN.get(norm.name, departs)}
    why = held_out(module, found)
    row |= {"result": "named", "kind": found.kind, "presets": list(found.presets)}
    return row | {"held_out": why or "agrees"}


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


def table() -> dict[str, Any]:
    """The whole table, with counts."""
    rows = []
    for norm in norm_classes():
        rows.append(entry(norm))
        print(norm.name, rows[-1]["result"], *rows[-1].get("presets", ())[:1], flush=True)
    results = Counter(row["result"] for row in rows)
    return {
        "transformers": transformers.__version__,
        "classes": len(rows),
        "buildable": len(rows) - results["not buildable"],
        "named": results["named"],
        "agree_on_held_out_inputs": sum(row.get("held_out") == "agrees" for row in rows),
        "of_them_called_RMSNorm_or_LayerNorm": _suffixed(rows),
        "first_presets": Counter(
            f"{row['kind']}/{row['presets'][0]}" for row in rows if row["result"] == "named"
        ),
        "misses": {
            row["class"]: row.get("reason") or row["held_out"]
            for row in rows
            if row.get("held_out") != "agrees"
        },
        "rows": rows,
    }


def _suffixed(rows: list[dict[str, Any]]) -> dict[str, int]:
    """How many classes have these endings, and at how many the preset agrees."""
    ends = [row for row in rows if row["class"].endswith(("RMSNorm", "LayerNorm"))]
    return {
        "classes": len(ends),
        "agree_on_held_out_inputs": sum(row.get("held_out") == "agrees" for row in ends),
    }


def main() -> None:
    """Write the table, and say what it holds."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    found = table()
    TABLE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({k: v for k, v in found.items() if k != "rows"}, indent=1))


if __name__ == "__main__":
    main()
