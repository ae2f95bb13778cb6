"""The commands, run as a user runs them."""

import json
import re
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import jsonschema
import normkit.numpy
import numpy as np
import pytest

from normkit.cli._check import check_backends
from normkit.cli.backends import Backend

_COMMAND = [sys.executable, "-c", "from normkit.cli import main; main()"]


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*_COMMAND, *arguments], check=False, capture_output=True, text=True, timeout=600
    )


def test_info_lists_versions_backends_and_what_is_missing() -> None:
    result = _run("info")
    assert result.returncode == 0
    assert re.search(rf"^normkit {normkit.__version__} on Python", result.stdout)
    assert re.search(r"^  numpy +\d", result.stdout, re.MULTILINE)
    assert re.search(
        r"^  numpy:cpu +kernels: numba, array_api, pairs$", result.stdout, re.MULTILINE
    )


def test_info_works_without_the_cli_extra_and_check_says_what_to_install() -> None:
    hide = "import sys; sys.modules['typer'] = None; from normkit.cli import main; main()"
    for argument, status, where in (("info", 0, "numpy:cpu"), ("check", 2, "normkit[cli]")):
        run = [sys.executable, "-c", hide, argument]
        result = subprocess.run(run, check=False, capture_output=True, text=True)
        assert result.returncode == status
        assert where in result.stdout + result.stderr
        assert "Traceback" not in result.stderr


def test_check_of_numpy_as_table_json_and_html(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    result = _run("check", "--backend", "numpy", "--html", str(page))
    assert result.returncode == 0
    rows = re.findall(r"^numpy +cpu +(\w+) .* ok *$", result.stdout, re.MULTILINE)
    assert rows == ["float32", "bfloat16", "float16", "float64"]
    assert "float32" in page.read_text(encoding="utf-8")

    result = _run("check", "--backend", "numpy:cpu", "--json")
    assert result.returncode == 0
    report = json.loads(result.stdout)
    schema = json.loads(files("normkit.data").joinpath("check.schema.json").read_text("utf-8"))
    jsonschema.validate(report, schema)
    assert report["ok"] is True
    for row in report["rows"]:
        assert row["bits_differ"] == 0
        assert row["worst_ulp_real"] <= (4 if row["dtype"] == "float64" else 0.501)


def test_check_of_a_missing_backend_is_one_line_and_exit_2() -> None:
    result = _run("check", "--backend", "torch:abacus")
    assert result.returncode == 2
    assert re.fullmatch(
        r"normkit check: torch:abacus is not here: no such backend; here are numpy:cpu.*\n",
        result.stderr,
    )


class _Wrong:
    """A backend with a fault: LayerNorm without the second subtraction, RMSNorm one bit off."""

    @staticmethod
    def rms_norm(x, scale, bias, *, eps):
        y = normkit.numpy.rms_norm(x, scale, bias, eps=eps)
        if x.shape == (18, 576):
            y[0, 0] = np.nextafter(y[0, 0], np.inf, dtype=y.dtype)
        return y

    @staticmethod
    def layer_norm(x, scale, bias, *, eps):
        with np.errstate(all="ignore"):
            d = x - x.mean(-1, keepdims=True)
            y = d / np.sqrt((d * d).mean(-1, keepdims=True) + x.dtype.type(eps))
            y = y if scale is None else y * scale
            return y if bias is None else y + bias


def test_check_finds_a_wrong_backend() -> None:
    numpy = Backend("numpy", "cpu", normkit.numpy, lambda a: a, np.asarray)
    wrong = numpy._replace(framework="torch", functions=_Wrong)
    right, caught = check_backends([numpy, wrong], ("float32",))
    assert right.ok
    assert not caught.ok
    assert caught.bits_differ > 1
    assert caught.worst_ulp_real > 0.501
    assert caught.worst_ulp_hard > 1000


@pytest.mark.parametrize("arguments", [["--version-of-nothing"], ["nonsense"]])
def test_wrong_usage_exits_2(arguments: list[str]) -> None:
    assert _run(*arguments).returncode == 2


_NORMS = """
import numpy as np


class Norm:
    def __init__(self, eps=1e-6):
        self.eps = eps

    def __call__(self, x, weight):
        h = x.astype(np.float32)
        h = h / np.sqrt(np.mean(h * h, -1, keepdims=True) + np.float32(self.eps))
        return h.astype(x.dtype) * weight


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def broken():
    raise RuntimeError("no\\nluck")
"""


def _norms(tmp_path: Path) -> Path:
    path = tmp_path / "some_norms.py"
    path.write_text(_NORMS, encoding="utf-8")
    return path


def test_identify_as_text_and_json(tmp_path: Path) -> None:
    path = _norms(tmp_path)
    result = _run("identify", f"{path}:Norm", "--option", "eps=1e-5")
    assert (result.returncode, result.stderr) == (0, "")
    assert re.search(r"^  convention +rms_norm: olmo1, llama$", result.stdout, re.MULTILINE)
    assert re.search(r"^  eps +1e-05 inside$", result.stdout, re.MULTILINE)
    result = _run("identify", f"{path}:Norm", "--arg", "1e-4", "--json")
    report = json.loads(result.stdout)
    assert report["schema"] == "normkit-identify-1"
    assert (report["presets"], report["eps"]) == (["llama", "olmo1"], 1e-4)


def test_identify_of_no_norm_exits_1(tmp_path: Path) -> None:
    result = _run("identify", f"{_norms(tmp_path)}:softmax")
    assert result.returncode == 1
    assert re.search(r"^  convention +none$", result.stdout, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["nothing"], "nothing: name it as module:object or file.py:object; got 'nothing'"),
        (["nowhere:f"], "nowhere:f: cannot import nowhere: No module named 'nowhere'"),
        (["math:nothing"], "math:nothing: math has no nothing"),
        (["/no/such.py:f"], "/no/such.py:f: there is no file /no/such.py"),
        (["math:pi"], "math:pi: TypeError: a norm must be a function or a module; got float; .*"),
        (["math:sin", "--option", "x"], "math:sin: an option is name=value; got 'x'"),
        (["NORMS:broken", "--option", "a=1"], ".*: TypeError: broken.* argument 'a'"),
    ],
)
def test_identify_errors_are_one_line_and_exit_2(
    arguments: list[str], text: str, tmp_path: Path
) -> None:
    path = str(_norms(tmp_path))
    result = _run("identify", *(a.replace("NORMS", path) for a in arguments))
    assert result.returncode == 2
    assert result.stdout == ""
    assert re.fullmatch(f"normkit identify: {text}\n", result.stderr)


_MODELS = """
from torch import nn


def mixed():
    return nn.Sequential(nn.RMSNorm(32), nn.RMSNorm(32, eps=1e-5))


class Plain(nn.Sequential):
    def __init__(self, width=32):
        super().__init__(nn.LayerNorm(width), nn.Linear(width, width), nn.LayerNorm(width))
"""


def test_census_as_text_and_json(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "some_models.py"
    path.write_text(_MODELS, encoding="utf-8")
    result = _run("census", f"{path}:Plain", "--arg", "48")
    assert (result.returncode, result.stderr) == (0, "")
    assert re.search(r"^ +2  LayerNorm +48  layer_norm/torch +1e-05 ", result.stdout, re.MULTILINE)
    result = _run("census", f"{path}:mixed", "--json")
    assert result.returncode == 1
    report = json.loads(result.stdout)
    assert [norm["eps"] for norm in report["norms"]] == [2.0**-23, 1e-5]
    assert "eps differs" in report["warnings"][0]


def test_census_errors_are_one_line_and_exit_2(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    for target, text in (
        (str(tmp_path / "config.json"), "there is no such file"),
        ("math:pi", "TypeError: 'float' object is not callable"),
    ):
        result = _run("census", target)
        assert result.returncode == 2
        assert result.stderr == f"normkit census: {target}: {text}\n"


def test_census_of_a_configuration(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        num_hidden_layers=1, hidden_size=32, num_attention_heads=2, intermediate_size=32
    )
    config.save_pretrained(tmp_path)
    result = _run("census", str(tmp_path / "config.json"))
    assert result.returncode == 0, result.stderr
    assert re.search(r"^ +3  LlamaRMSNorm +32  rms_norm/llama ", result.stdout, re.MULTILINE)
