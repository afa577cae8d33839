"""The tests of each planted fault fail with the fault and pass without it."""

import dataclasses
import importlib
import os
import re
import shutil
import tempfile
from pathlib import Path

import pytest

import hmmscope_papers
import hmmscope_studies
import package_copies
from hmmscope import __file__ as package_file
from injected_faults import IN_INFERENCE, Fault
from injected_faults_elsewhere import IN_BITS, IN_DATA, IN_MEASUREMENTS, ON_DISK

TESTS = Path(__file__).resolve().parents[1] / "tests"
PACKAGE = Path(package_file).parent


def source_of(file: str) -> Path:
    """Return the path of a file below src/hmmscope, or of ``../<package>/<file>`` in another package."""
    if not file.startswith("../"):
        return PACKAGE / file
    package, _, rest = file.removeprefix("../").partition("/")
    return Path(str(importlib.import_module(package).__file__)).parent / rest


FAULTS = {fault.name: fault for fault in (*IN_INFERENCE, *IN_BITS, *IN_DATA, *IN_MEASUREMENTS, *ON_DISK)}
#: Faults that are detected within seconds, because nothing has to be compiled again.
QUICK = (
    "no initial law",
    "a mixture predicts from beliefs not moved on",
    "hindsight loses what seemed negligible",
    "epsilon in place of zero",
    "half the Kalman gain",
    "digests of a manifest unchecked",
)


@dataclasses.dataclass
class Copy:
    """A copy of the package into which one fault at a time is planted; tests run on it in a separate process."""

    root: Path

    @classmethod
    def make(cls, root: Path) -> "Copy":
        """Copy the packages with their compiled functions; these are valid for files with equal time and size."""
        for package in (PACKAGE, *(Path(one.__file__).parent for one in (hmmscope_papers, hmmscope_studies))):
            shutil.copytree(package, root / package.name, ignore=shutil.ignore_patterns("*.pyc"))
        return cls(root)

    def pytest(self, tests: tuple[str, ...], *, anew: bool = False) -> tuple[int | None, str]:
        """Run tests; return the exit code (0: all passed, 1: some failed, other: they did not run) and the output."""
        nodes = [str(TESTS / test) for test in tests]
        base = Path(tempfile.mkdtemp(dir=self.root))
        options = ["-x", "-q", "-o", "addopts=", "-p", "no:cacheprovider", "--timeout", "500", "--basetemp", str(base)]
        return package_copies.run(
            self.root, [*options, *nodes], Path(tempfile.mkdtemp(dir=self.root)) if anew else None
        )

    def caught(self, fault: Fault) -> bool:
        """Return whether the tests fail with the fault.

        Raises:
            AssertionError: The original code does not occur exactly once, or the tests cannot run.
        """
        file = self.root / "hmmscope" / fault.file
        text, before = file.read_text(), file.stat()
        found = text.count(fault.original)
        assert found == 1, f"{fault.file}: {found} places for {fault.name!r}"
        assert fault.original != fault.planted
        try:
            file.write_text(text.replace(fault.original, fault.planted))
            # The cache of a compiled function depends on its own file only, so a fault in a callee needs an empty cache.
            code, printed = self.pytest(fault.tests, anew=fault.file.startswith(("kernels/", "engine/")))
        finally:
            file.write_text(text)
            os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert code in (0, 1), f"{fault.name}: the tests did not run\n{printed[-3000:]}"
        assert "ERROR" not in printed, f"{fault.name}: a test failed during setup\n{printed[-3000:]}"
        return code == 1

    def must_pass(self, tests: set[str]) -> None:
        """Assert that the tests pass on the unchanged copy."""
        code, printed = self.pytest(tuple(sorted(tests)))
        assert code == 0, f"without a fault:\n{printed[-3000:]}"


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    return Copy.make(tmp_path_factory.mktemp("copy"))


def ids_of(names: tuple[str, ...]) -> set[str]:
    return {test for name in names for test in FAULTS[name].tests}


# --------------------------------------------------------------------------------------------------------------------


def test_the_table() -> None:
    """At least forty faults; the code of each occurs once in the source, and its tests exist."""
    faults = [*IN_INFERENCE, *IN_BITS, *IN_DATA, *IN_MEASUREMENTS, *ON_DISK]
    assert len(faults) == len(FAULTS) >= 40
    assert set(QUICK) <= set(FAULTS)
    for fault in faults:
        assert source_of(fault.file).read_text().count(fault.original) == 1, f"{fault.file}: {fault.name}"
        assert fault.tests
        for test in fault.tests:
            file, _, name = test.partition("::")
            assert re.search(rf"^def {name}\(", (TESTS / file).read_text(), re.MULTILINE), test


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_quick_faults_are_caught(name: str, copy: Copy) -> None:
    """`test_a_change_of_no_consequence_is_not_caught` shows that the same tests pass without a fault."""
    assert copy.caught(FAULTS[name])


@pytest.mark.slow
def test_a_change_of_no_consequence_is_not_caught(copy: Copy) -> None:
    """Harmless changes, missing code, and code with which the tests cannot run do not count as detected faults."""
    fault = FAULTS["half the Kalman gain"]._replace(tests=tuple(sorted(ids_of(QUICK))))
    harmless = fault._replace(planted="mean = mean + 1.0 * innovation @ step.gain.T")
    assert not copy.caught(harmless)
    assert (copy.root / "hmmscope" / fault.file).read_bytes() == source_of(fault.file).read_bytes()
    with pytest.raises(AssertionError, match="0 places for"):
        copy.caught(fault._replace(original="no such line"))
    with pytest.raises(AssertionError, match="the tests did not run"):
        copy.caught(fault._replace(planted="this is no Python"))
    with pytest.raises(AssertionError, match="without a fault"):
        copy.must_pass({"inference/test_kalman.py::test_of_nothing"})


@pytest.mark.soak
def test_without_faults_all_tests_pass(copy: Copy) -> None:
    copy.must_pass(ids_of(tuple(FAULTS)))


@pytest.mark.soak
@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_is_caught(name: str, copy: Copy) -> None:
    assert copy.caught(FAULTS[name])
