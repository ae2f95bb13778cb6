"""The ``normkit`` command."""

import sys


def main() -> None:
    """Run the command line; ``info`` works without the ``cli`` extra, all else needs it."""
    try:
        from normkit.cli._app import app
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        if sys.argv[1:] != ["info"]:
            sys.exit(_missing_extra(error.name))
        from normkit.cli._info import info_lines

        print("\n".join(info_lines()))
    else:
        app(prog_name="normkit")


def _missing_extra(module: str) -> int:
    print(
        f"normkit: the command line needs {module}, which is not installed (only 'normkit info' "
        "does without); run: pip install 'normkit[cli]'",
        file=sys.stderr,
    )
    return 2
