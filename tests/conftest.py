"""A test that takes ``backend``, ``op`` or a ``...dtype`` runs on the whole table of them."""

import itertools
import os
from typing import Any

import pytest
from backends import DTYPES, FORWARD, HALF, subjects

os.environ.setdefault("KERAS_BACKEND", "jax")  # Keras's own default is TensorFlow
_HERE, _MISSING = subjects()
_BY_LABEL = {subject.label: subject for subject in _HERE}
_CHOICES = {
    "backend": tuple(_BY_LABEL),
    "op": FORWARD,
    "dtype": DTYPES,
    "scale_dtype": DTYPES,
    "half_dtype": HALF,
    "bits_dtype": tuple(d for d in DTYPES if d != "float64"),  # where equal bits are promised
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require",
        action="append",
        default=[],
        metavar="FRAMEWORK:DEVICE",
        help="fail, rather than skip, where this backend is missing; repeatable",
    )


def pytest_configure(config: pytest.Config) -> None:
    known = set(_BY_LABEL) | set(_MISSING)
    for label in config.getoption("--require"):
        if label not in known:
            message = f"--require {label}: no such backend; known are {', '.join(sorted(known))}"
            raise pytest.UsageError(message)


def pytest_report_header(config: pytest.Config) -> list[str]:
    import normkit

    missing = [f"{label} ({reason})" for label, reason in _MISSING.items()]
    return [
        f"normkit {normkit.__version__} from {normkit.__path__[0]}",
        f"backends: {', '.join(_BY_LABEL)}",
        f"not here: {', '.join(missing) or 'nothing'}",
    ]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marks = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    own = {name for names in marks for name in ([names] if isinstance(names, str) else names)}
    names = [n for n in _CHOICES if n in metafunc.fixturenames and n not in own]
    if not names:
        return
    rows = [
        row
        for row in itertools.product(*(_CHOICES[n] for n in names))
        if _supported(dict(zip(names, row, strict=True)))
    ]
    metafunc.parametrize(names, rows, indirect=["backend"] if "backend" in names else False)


def _supported(row: dict[str, str]) -> bool:
    if "backend" not in row:
        return True
    dtypes = {dtype for name, dtype in row.items() if name.endswith("dtype")}
    return dtypes <= set(_BY_LABEL[row["backend"]].dtypes)


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> Any:
    return _BY_LABEL[request.param]


def missing_backends() -> dict[str, str]:
    return _MISSING
