"""How far a command walks through the package: modules entered, functions called, and how deep the calls go.

`python -m tests.benchmarks.walk replay sample_data/rollouts.parquet` prints the three figures, then the modules in the
order in which they are entered and the deepest chain of calls. A module counts when one of its functions runs. Frames
of other packages, lambdas and comprehensions don't count; a function that is on the stack twice counts once.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType

PACKAGE = Path(__file__).parents[2] / "tokenaudit"
_NO_FUNCTION = {"<module>", "<lambda>", "<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>"}


class Walk:
    """Follows calls inside the package, in every thread."""

    def __init__(self) -> None:
        self.modules: dict[str, None] = {}
        self.functions: set[CodeType] = set()
        self.deepest: list[str] = []
        self._is_ours: dict[CodeType, bool] = {}

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        """See `sys.setprofile`."""
        if event != "call" or not self._counts(frame.f_code):
            return
        self.modules.setdefault(_module(frame.f_code))
        self.functions.add(frame.f_code)
        chain: dict[CodeType, None] = {}
        above: FrameType | None = frame
        while above is not None:
            if self._counts(above.f_code):
                chain.setdefault(above.f_code)
            above = above.f_back
        if len(chain) > len(self.deepest):
            self.deepest = [f"{_module(code)}:{code.co_qualname}" for code in reversed(list(chain))]

    def _counts(self, code: CodeType) -> bool:
        if code not in self._is_ours:
            inside = code.co_filename.startswith(str(PACKAGE)) and code.co_name not in _NO_FUNCTION
            # the body of a class is no function: it runs when its module is imported
            self._is_ours[code] = inside and bool(
                code.co_flags & inspect.CO_NEWLOCALS and code.co_flags & inspect.CO_OPTIMIZED
            )
        return self._is_ours[code]


def _module(code: CodeType) -> str:
    return str(Path(code.co_filename).relative_to(PACKAGE).with_suffix(""))


def walk(arguments: list[str]) -> Walk:
    """Run a command in this process and follow it."""
    from tokenaudit.cli import main

    followed = Walk()
    sys.argv = ["tokenaudit", *arguments]
    threading.setprofile(followed)
    sys.setprofile(followed)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            main()
    except SystemExit:
        pass
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    return followed


if __name__ == "__main__":
    found = walk(sys.argv[1:] or ["replay", "sample_data/rollouts.parquet"])
    print(f"{len(found.modules)} modules, {len(found.functions)} functions, {len(found.deepest)} frames deep")
    print("modules: " + ", ".join(found.modules))
    print("deepest: " + " > ".join(found.deepest))
