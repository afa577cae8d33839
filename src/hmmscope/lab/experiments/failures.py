"""Collection of the failures of single tasks, so that the other tasks continue."""

from collections.abc import Iterator
from contextlib import contextmanager

from hmmscope.errors import FullDiskError, HmmscopeError, PartlyFailedError, code_and_line
from hmmscope.training.signals import Interrupted


class Failures:
    """Context manager that collects failures and raises one error at its end, with the first failure's exit code.

    Args:
        what: name of the work, with which messages start.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._failed: list[tuple[str, int, str]] = []

    def __enter__(self) -> "Failures":
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if isinstance(error, FullDiskError):
            raise FullDiskError(f"{self._what}: {error}; free space, then repeat the command with --resume") from error
        if error is None and self._failed:
            name, code, line = self._failed[0]
            others = f"; {len(self._failed) - 1} more failed: {', '.join(n for n, *_ in self._failed[1:4])}"
            rule = "all other tasks are complete; run the same command with --resume to try again"
            more = others if len(self._failed) > 1 else ""
            raise PartlyFailedError(f"{self._what}: {name} failed (error[{code}] {line}){more}; {rule}", code)

    def note(self, name: str, code: int, line: str) -> None:
        self._failed.append((name, code, line.removeprefix(f"error[{code}] ")))

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Record an exception inside the block as a failure; interrupts and `FullDiskError` are raised."""
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
    try:
        yield
    except (Interrupted, FullDiskError):
        raise
    except Exception as error:
        code, line = code_and_line(error)
        if code == HmmscopeError.exit_code:
            raise
        raise PartlyFailedError(f"{name}: {line}", code) from error
