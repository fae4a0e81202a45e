"""The ``antdt`` program that is in the wheel."""

import os
import sys


def main() -> None:
    """Becomes the program: signals and exit codes are its own."""
    program = os.path.join(os.path.dirname(__file__), "bin", "antdt")
    if not os.path.exists(program):
        sys.exit(
            "antdt: this installation has the Python package without the program; install the program with "
            "`cargo install --path antdt`, or a wheel that `cargo xtask wheel` made"
        )
    # Scripts run in the environment that this package is installed in, as under torchrun.
    os.environ.setdefault("PYTHON_EXEC", sys.executable)
    os.execv(program, [program, *sys.argv[1:]])
