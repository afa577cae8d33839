"""The command line: parsing only. A verb is told by a record and done by a function of its name, imported when called."""

import argparse
import dataclasses
import difflib
import errno
import gc
import importlib
import os
import re
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import Any, NoReturn, get_args, get_origin

from hmmscope.errors import HmmscopeError, InputError, code_and_line
from hmmscope.lab.verbs.options import VERBS, OverrideOptions
from hmmscope.schema import UnknownNameError, unknown_name
from hmmscope.synonyms import suggestion
from hmmscope.text import NobodyReadsError, in_a_line, say, silence, tell, whatever_is_heard

_EPILOG = """\
a process is a registered name (hmmscope show processes), a shipped one, or a file (.json, .npz, .safetensors)
options of the form --section.key VALUE change one number of a configuration: --training.num_steps 500

exit codes: 0 done, 2 bad input, 3 refused (exists, in use, differs), 4 damaged data, 5 resources (disk, memory,
device), 6 non-finite numbers, 130 interrupted, 143 terminated, 70 internal error
"""

#: Verbs that only print: they end when nobody reads any more.
_SHOWN = ("show", "sample", "infer", "claims")
#: Characters of an error at most: of a longer one, the middle is left out.
_LONGEST_LINE = 400


class _Parser(argparse.ArgumentParser):
    """Errors in one line, as all others."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see {self.prog} --help")


def build_parser() -> argparse.ArgumentParser:
    """The parser of all verbs, from their records."""
    below: dict[str, Any] = {"epilog": _EPILOG, "formatter_class": argparse.RawDescriptionHelpFormatter}
    parser = _Parser(prog="hmmscope", description=__import__("hmmscope").__doc__, **below)
    parser.add_argument("--version", action="store_true", help="print the version")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", parser_class=_Parser)
    for name, record in VERBS.items():
        text = (record.__doc__ or "").partition("\n")[0]
        changing = below if issubclass(record, OverrideOptions) else {}
        # Without abbreviations: --seed is a field of the configuration, and not short for --seeds.
        sub = verbs.add_parser(name, help=text, description=text, allow_abbrev=False, **changing)
        groups: dict[str, Any] = {}
        for one in dataclasses.fields(record):
            if one.metadata:
                title = one.metadata.get("group")
                _add(groups.setdefault(title, sub.add_argument_group(title)) if title else sub, one)
    return parser


def _add(parser: argparse._ActionsContainer, one: dataclasses.Field) -> None:
    """An option or an argument, from the field of a record."""
    how = {key: value for key, value in one.metadata.items() if key not in ("place", "flags", "group")}
    how["help"] = how.get("help") and how["help"].replace("%", "%%")  # which stands for itself
    many = get_origin(one.type) is tuple
    kind = next((word for word in (int, float) if word is one.type or word in get_args(one.type)), None)
    if kind is not None:
        how["type"] = kind
    default = None if one.default is dataclasses.MISSING else one.default
    if one.metadata.get("place"):
        left_out = one.default is not dataclasses.MISSING
        if many or left_out:
            how["nargs"] = ("*" if left_out else "+") if many else "?"
        parser.add_argument(one.name, default=default, **how)
        return
    if one.type is bool:
        how["action"] = "store_true"
    elif many:  # said again, it has more values
        how["nargs"], how["action"] = "+", "extend"
        default = None if default is None else list(default)
    parser.add_argument(*_flags(one), dest=one.name, default=default, **how)


def parse_overrides(words: Sequence[str]) -> dict[str, str]:
    """``--section.key value`` or ``--section.key=value`` pairs."""
    found: dict[str, str] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        key, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or not key:
            raise InputError(f"{word}: unexpected; options of a configuration are --section.key VALUE")
        if not equals:
            if not rest:
                raise InputError(f"--{key}: needs a value")
            value = rest.pop(0)
        key = key.replace("-", "_")
        if key in found:
            raise InputError(f"--{key}: given twice")
        found[key] = value
    return found


def _split_overrides(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """``--section.key VALUE`` pairs apart from the rest, so that they may stand anywhere in the line."""
    dotted: list[str] = []
    words: list[str] = []
    rest = list(argv)
    plain = r"|--(seed|target)(=|$)" if rest and rest[0] in ("run", "train", "sweep") else ""  # of no section
    while rest:
        word = rest.pop(0)
        if re.match(rf"--[A-Za-z_]+\.{plain}", word):
            dotted += [word] if "=" in word or not rest else [word, rest.pop(0)]
        else:
            words.append(word)
    return dotted, words


def main(argv: Sequence[str] | None = None, *, own_process: bool = False) -> int:
    """Run one command; returns the exit code.

    In a process of its own, what has been imported by the time that work begins is exempt from garbage collection.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    words = [word for word in argv if word != "--debug"]
    return answered(lambda: _dispatch(words, own_process), debug="--debug" in argv)


def answered(command: Callable[[], int], *, debug: bool = False) -> int:
    """The exit code of a command, whose errors and warnings become a line each; with `debug` errors are raised."""
    code = _answered(command, debug)
    with suppress(ValueError, AttributeError):  # there is no standard output
        try:  # a reader that has gone shows here, not when the interpreter ends
            sys.stdout.flush()
        except OSError as error:
            silence()
            if error.errno not in (errno.EPIPE, errno.EBADF) and code == 0:
                failed, line = code_and_line(error)
                return _fail(line, failed)
    return code


def _answered(command: Callable[[], int], debug: bool) -> int:
    shown, warnings.showwarning = warnings.showwarning, _warn
    try:
        return command()
    except HmmscopeError as error:
        if debug:
            raise
        if _is_follower() and not error.speaks_for_all:
            return error.exit_code  # of several processes that are refused alike, the first says so
        return _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except NobodyReadsError:
        return 0
    except Exception as error:
        code, line = code_and_line(error)
        if debug and code == 70:
            raise
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EIO):
            silence()  # it may be the standard output that is full
        return _fail(line + (" (add --debug for more)" if code == 70 else ""), code)
    finally:
        warnings.showwarning = shown


def _dispatch(argv: list[str], own_process: bool) -> int:
    dotted, words = _split_overrides(argv)
    named = next((word for word in words if not word.startswith("-")), None)
    if named is not None and named not in VERBS:
        raise unknown_name("verb", named, VERBS)
    if named is not None:  # before what is required is missed
        _refuse_unknown(named, [word for word in words if re.match(r"--[a-zA-Z]", word)])
    arguments, rest = build_parser().parse_known_args(words)
    if arguments.version:
        from hmmscope import __version__

        say(f"hmmscope {__version__}")
        return 0
    if rest and arguments.verb is None:
        raise InputError(f"{rest[0]}: unknown option; see hmmscope --help")
    if arguments.verb is None:
        build_parser().print_help()
        return 2
    rest = dotted + rest
    record = VERBS[arguments.verb]
    _refuse_unknown(arguments.verb, rest)
    values = {key: value for key, value in vars(arguments).items() if key not in ("verb", "version", "debug")}
    values |= {key: tuple(value) for key, value in values.items() if isinstance(value, list)}
    if issubclass(record, OverrideOptions):
        values["overrides"] = parse_overrides(rest)

    # Waiting threads sleep instead of spinning: on cores that others use too, spinning makes two threads slower than one.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    function = getattr(importlib.import_module(f"hmmscope.lab.verbs.{arguments.verb}"), arguments.verb)
    if own_process:
        gc.freeze()
        gc.enable()
    try:
        stops = arguments.verb in _SHOWN and values.get("out") is None
        with nullcontext() if stops else whatever_is_heard():
            code = function(record(**values)) or 0
    except UnknownNameError as error:
        raise _with_options(error, arguments.verb, values.get("overrides", {})) from error
    except SystemExit as error:
        if os.environ.get("WORLD_SIZE", "1") != "1":  # several processes that end together
            raise
        raise InputError(
            f"{arguments.verb}: the code of the model ended the process (SystemExit: {error.code})"
        ) from None
    for written in filter(None, (values.get(name) for name in ("out", "figures", "export"))):
        from hmmscope.lab.verbs.output_paths import under_seal

        under_seal(written)
    return code


def _refuse_unknown(verb: str, rest: Sequence[str]) -> None:
    """InputError for what a verb does not take, with the nearest that it does; fields of a configuration have errors of
    their own, unless one is nearly the name of an option."""
    record, options = VERBS[verb], _options(VERBS[verb])
    for word in rest:
        flag = word.partition("=")[0]
        if flag in (*options, "--help", "--version"):
            continue
        if flag in ("--seed", "--target") and issubclass(record, OverrideOptions):  # fields of no section
            continue
        near = suggestion(flag, options) or difflib.get_close_matches(flag, options, 1, 0.85)
        if issubclass(record, OverrideOptions) and not near:
            continue
        if flag.startswith("--") and "." not in flag:
            raise unknown_name(f"hmmscope {verb}", flag, options)
        if not issubclass(record, OverrideOptions):
            raise InputError(f"{word}: unexpected; see hmmscope {verb} --help")


def _with_options(error: UnknownNameError, verb: str, overrides: Mapping[str, str]) -> InputError:
    """The error for a field that nothing has, with the options of the verb if it was written like one: without a dot."""
    if not isinstance(error.name, str) or error.name not in overrides:
        return error
    flags = [f"--{name}" for name in error.known if name.isidentifier() and name != "name"]
    return unknown_name(f"hmmscope {verb}", f"--{error.name}", dict.fromkeys([*flags, *_options(VERBS[verb])]))


def _options(record: type) -> list[str]:
    """The options of a verb, as they are written."""
    named = [one for one in dataclasses.fields(record) if one.metadata and not one.metadata.get("place")]
    return [flag for one in named for flag in _flags(one)]


def _flags(one: dataclasses.Field) -> Sequence[str]:
    return one.metadata.get("flags") or (f"--{one.name.replace('_', '-')}",)


def _is_follower() -> bool:
    """Whether this is one of several processes of torchrun, and not the first."""
    return os.environ.get("WORLD_SIZE", "1") != "1" and os.environ.get("RANK", "0") != "0"


def _warn(message: Warning | str, category: type[Warning], *where: object, **more: object) -> None:
    """A warning in one line, without the line of code that gave it."""
    line = " ".join(str(message).split())
    tell(f"warning: {in_a_line(line)}")


def _fail(message: str, code: int) -> int:
    line = in_a_line(" ".join(message.split()))
    if len(line) > _LONGEST_LINE:
        line = f"{line[: _LONGEST_LINE // 2]} ... {line[5 - _LONGEST_LINE // 2 :]}"
    tell(f"error[{code}] {line}")
    return code


if __name__ == "__main__":
    sys.exit(main())
