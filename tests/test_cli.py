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
    assert re.search(r"^  numpy:cpu +kernels: array_api, pairs$", result.stdout, re.MULTILINE)


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
