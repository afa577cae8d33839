"""Environments that a command must survive: closed streams, readers that go, narrow terminals, read-only folders."""

import io
import os
import subprocess
import sys
import warnings

import numba.core.caching
import pytest

from hmmscope import text
from hmmscope.errors import code_and_line
from hmmscope.kernels import compiling
from hmmscope.lab.cli import main


def _shell(line: str, **environment: str) -> subprocess.CompletedProcess:
    """Run a line of the shell, in which `h` is the command line."""
    function = f'h() {{ "{sys.executable}" -m hmmscope "$@"; }}'
    words = ["bash", "-c", f"{function}\n{line}"]
    return subprocess.run(words, env=os.environ | environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("line", "code", "out", "error"),
    [
        ("h show presets >&-", 0, "", ""),
        ("h show presets 1</dev/null", 0, "", ""),  # open, and not for writing
        ("h show nothing >&- 2>&-", 2, "", ""),
        ("h show nothing <&- 2>&-", 2, "", ""),  # its error does not go to the standard output
        ("h show presets > /dev/full", 5, "", "error[5] No space left on device"),
        ("h show processes | head -1 | wc -l; exit ${PIPESTATUS[0]}", 0, "1\n", ""),
    ],
)
def test_closed_streams_change_no_exit_code(line, code, out, error):
    done = _shell(line)
    assert done.returncode == code, done.stderr
    assert done.stdout == out
    assert done.stderr.startswith(error)
    assert bool(done.stderr) == bool(error)


def test_a_closed_stream_does_not_write_into_a_file(tmp_path):
    """The first file that is opened would take the free number, and text would go into it."""
    own = (
        "import os, sys; from hmmscope.text import repair_streams; repair_streams(); file = open('x', 'w'); "
        "print('printed', flush=True); os.write(2, b'said by a library'); file.write('own')"
    )
    done = _shell(f"cd '{tmp_path}'; '{sys.executable}' -c \"{own}\" >&- 2>&-")
    assert done.returncode == 0
    assert (tmp_path / "x").read_text() == "own"


class Gone(io.TextIOBase):
    """A standard output without a reader."""

    encoding = "utf-8"

    def write(self, text):
        raise BrokenPipeError(32, "Broken pipe")

    def flush(self):
        self.write("")


@pytest.mark.parametrize(("verb", "done"), [("train", ["first", "second"]), ("show", ["first"])])
def test_work_goes_on_without_a_reader_and_printing_ends(verb, done, monkeypatch):
    seen = []

    def work(*_):
        for name in ("first", "second"):
            seen.append(name)
            text.say(name)

    monkeypatch.setattr(f"hmmscope.lab.verbs.{verb}.{verb}", work)
    monkeypatch.setattr(sys, "stdout", Gone())
    assert main([verb, *(["mess3", "--out", "nowhere"] if verb == "train" else [])]) == 0
    assert seen == done


def test_work_goes_on_without_a_standard_error(monkeypatch):
    from hmmscope.progress import say_beside

    for stream in (Gone(), None):
        monkeypatch.setattr(sys, "stderr", stream)
        say_beside("step 3")
        assert main(["show", "nothing"]) == 2


def test_a_pipe_between_processes_is_no_missing_reader(monkeypatch, capsys):
    def work(*_):
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("hmmscope.lab.verbs.show.show", work)
    assert main(["show"]) == 5
    assert capsys.readouterr().err == "error[5] Broken pipe; files saved earlier are intact\n"


@pytest.mark.parametrize(("encoding", "shown"), [("ascii", "\\xfcber \\u2192"), ("latin-1", "über \\u2192")])
def test_a_terminal_that_cannot_encode(encoding, shown, monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding))
    text.say("über →", flush=True)
    assert raw.getvalue().decode(encoding) == f"{shown}\n"


def test_help_on_a_terminal_that_cannot_encode():
    done = _shell("h fit --help && h show claims | tail -1", PYTHONIOENCODING="ascii:strict")
    assert done.returncode == 0, done.stderr


def test_without_a_folder_for_kernels_they_are_compiled_and_one_warning_says_so(monkeypatch):
    """A read-only installation, and a home that cannot be written: numba finds no place to keep what it compiles."""
    for one in (numba.core.caching.CompileResultCacheImpl, numba.core.caching.CacheImpl):
        monkeypatch.setattr(one, "_locator_classes", [])
    monkeypatch.setattr(compiling, "_warned", [])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        double, triple = (compiling.kernel()(one) for one in (_double, _triple))
    assert [double(2), triple(2)] == [4, 6]
    assert len(told) == 1
    assert "NUMBA_CACHE_DIR" in str(told[0].message)


def _double(number):
    return 2 * number


def _triple(number):
    return 3 * number


@pytest.mark.parametrize("error", [FileNotFoundError, NotADirectoryError, PermissionError])
def test_a_folder_that_is_gone_is_one_line(error, tmp_path):
    if error is NotADirectoryError:
        (tmp_path / "x").write_text("")
    number = {FileNotFoundError: 2, NotADirectoryError: 20, PermissionError: 13}[error]
    with pytest.raises(error) as caught:
        raise OSError(number, "no", str(tmp_path / "x" / "y"))
    code, line = code_and_line(caught.value)
    assert code == 5
    assert line.startswith(f"{tmp_path / 'x' / 'y'}: ")
