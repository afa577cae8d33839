"""Several pieces of work of which one may fail: the others are done all the same, and each that failed is named."""

from collections.abc import Iterator
from contextlib import contextmanager

from hmmscope.errors import FullDiskError, HmmscopeError, PartlyFailedError, code_and_line
from hmmscope.training.signals import Interrupted


class Failures:
    """Collects what fails `of` each piece; at the end one error names the pieces, with the code and line of the first.

    Args:
        what: all of it.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._failed: list[tuple[str, int, str]] = []

    def __enter__(self) -> "Failures":
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if isinstance(error, FullDiskError):
            raise FullDiskError(f"{self._what}: {error}; add --resume to go on") from error
        if error is None and self._failed:
            name, code, line = self._failed[0]
            others = f"; as did {len(self._failed) - 1} more: {', '.join(n for n, *_ in self._failed[1:4])}"
            rule = "all else is done, and the same command with --resume tries it again"
            more = others if len(self._failed) > 1 else ""
            raise PartlyFailedError(f"{self._what}: {name} failed (error[{code}] {line}){more}; {rule}", code)

    def note(self, name: str, code: int, line: str) -> None:
        """That a piece failed."""
        self._failed.append((name, code, line.removeprefix(f"error[{code}] ")))

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """What fails in here is that piece's failure; being told to stop ends all, and so does a full disk."""
        try:
            yield
        except Interrupted:
            raise
        except FullDiskError as error:
            raise FullDiskError(f"{name}: {error}") from error
        except Exception as error:
            self._failed.append((name, *code_and_line(error)))


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Errors begin with the phase that they ended."""
    try:
        yield
    except (Interrupted, FullDiskError):
        raise
    except Exception as error:
        code, line = code_and_line(error)
        if code == HmmscopeError.exit_code:
            raise
        raise PartlyFailedError(f"{name}: {line}", code) from error
