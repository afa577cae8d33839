"""The command line: parse the arguments, import the function of the verb (subcommand), and call it with its options."""

import argparse
import dataclasses
import difflib
import errno
import gc
import importlib
import os
import re
import sys
import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import Any, NoReturn, get_args, get_origin

from hmmscope.errors import HmmscopeError, InputError, code_and_line
from hmmscope.lab.verbs.options import ANYBODY, DATA, MODEL, PAPER, OverrideOptions, verbs
from hmmscope.schema import UnknownNameError, unknown_name
from hmmscope.synonyms import suggestion
from hmmscope.text import NobodyReadsError, in_a_line, say, silence, tell, whatever_is_heard

_EPILOG = """\
a process is given by its name (hmmscope show processes lists the names) or by a file (.json, .npz, .safetensors)
--section.key VALUE changes one value of a configuration, for example --training.num_steps 500

exit codes: 0 done, 2 bad input, 3 refused (the output exists, is in use or differs), 4 damaged data,
5 resources (disk, memory, device), 6 non-finite numbers, 130 interrupted, 143 terminated, 70 internal error
"""

#: Verbs that only print; they stop when the reader of their output (a pipe) has closed it.
_SHOWN = ("show", "sample", "infer", "claims")
#: Most characters of an error line; the middle of a longer line is cut out.
_LONGEST_LINE = 400


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see {self.prog} --help")


#: Other words that users may type for a verb, among them its earlier names, by verb.
_WORDS = {
    "infer": "ask oracle facts decode",
    "check": "verify doctor test",
    "show": "list help",
    "analyse": "export probe evaluate",
    "report": "figures page",
    "look": "explore inspect",
    "run": "paper reproduce experiment",
    "claims": "ledger verdicts",
    "sample": "generate simulate",
}


def unknown_verb(name: str) -> InputError:
    from hmmscope.registry import not_registered

    verb_of = {word: verb for verb, words in _WORDS.items() for word in words.split()}
    near = difflib.get_close_matches(name[:100], [*verb_of, *verbs()], 1, 0.7)
    return not_registered(unknown_name("verb", name, verbs(), verb_of.get(near[0]) if near else None))


def build_parser() -> argparse.ArgumentParser:
    raw: dict[str, Any] = {"formatter_class": argparse.RawDescriptionHelpFormatter}
    known = verbs()
    about = f"{__import__('hmmscope').__doc__}\n\n{_by_audience(known)}"
    parser = _Parser(
        prog="hmmscope", usage="hmmscope [-h] [--version] [--debug] VERB ...", description=about, epilog=_EPILOG, **raw
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    parser.add_argument("--debug", action="store_true", help="show full tracebacks of errors")
    below_verb = parser.add_subparsers(
        dest="verb", prog="hmmscope", metavar="VERB", parser_class=_Parser, help=argparse.SUPPRESS
    )
    for name, record in known.items():
        examples = getattr(record, "examples", ())
        ends = "\n".join(["examples:", *(f"  $ {line}" for line in examples)]) if examples else ""
        ends += f"\n\n{_EPILOG}" if issubclass(record, OverrideOptions) else ""
        # No abbreviations: --seed is a field of the configuration, not short for --seeds.
        sub = below_verb.add_parser(name, description=_summary(record), epilog=ends, allow_abbrev=False, **raw)
        groups: dict[str, Any] = {}
        for one in dataclasses.fields(record):
            if one.metadata:
                title = one.metadata.get("group")
                _add(groups.setdefault(title, sub.add_argument_group(title)) if title else sub, one)
        if "_ARGCOMPLETE" in os.environ:
            importlib.import_module("hmmscope.lab.verbs.completion").complete_names(name, sub)
    return parser


def _summary(record: type) -> str:
    return (record.__doc__ or "").partition("\n")[0]


def _by_audience(known: Mapping[str, type]) -> str:
    groups: dict[str, list[str]] = {audience: [] for audience in (DATA, MODEL, PAPER, ANYBODY)}
    for name, record in known.items():
        line = textwrap.fill(_summary(record), 96, initial_indent=f"  {name:<11}", subsequent_indent=" " * 13)
        groups.setdefault(getattr(record, "audience", "other verbs"), []).append(line)
    return "\n\n".join("\n".join([f"{audience}:", *lines]) for audience, lines in groups.items() if lines)


def _add(parser: argparse._ActionsContainer, one: dataclasses.Field) -> None:
    how = {key: value for key, value in one.metadata.items() if key not in ("place", "flags", "group")}
    how["help"] = how.get("help") and how["help"].replace("%", "%%")
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
    elif many:  # repeating the option adds values
        how["nargs"], how["action"] = "+", "extend"
        default = None if default is None else list(default)
    parser.add_argument(*_flags(one), dest=one.name, default=default, **how)


def parse_overrides(words: Sequence[str]) -> dict[str, str]:
    """Parse ``--section.key value`` and ``--section.key=value`` into a dictionary."""
    found: dict[str, str] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        key, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or not key:
            raise InputError(f"{word}: unexpected word; write configuration values as --section.key VALUE")
        if not equals:
            if not rest:
                raise InputError(f"--{key}: needs a value, as in --{key} VALUE")
            value = rest.pop(0)
        key = key.replace("-", "_")
        if key in found:
            raise InputError(f"--{key}: is given twice; give it once")
        found[key] = value
    return found


def _split_overrides(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    dotted: list[str] = []
    words: list[str] = []
    rest = list(argv)
    plain = (
        r"|--(seed|target)(=|$)" if rest and rest[0] in ("run", "train", "sweep") else ""
    )  # fields outside any section
    while rest:
        word = rest.pop(0)
        if re.match(rf"--[A-Za-z_]+\.{plain}", word):
            dotted += [word] if "=" in word or not rest else [word, rest.pop(0)]
        else:
            words.append(word)
    return dotted, words


def main(argv: Sequence[str] | None = None, *, own_process: bool = False) -> int:
    if "_ARGCOMPLETE" in os.environ:
        importlib.import_module("argcomplete").autocomplete(build_parser())
    argv = list(sys.argv[1:] if argv is None else argv)
    words = [word for word in argv if word != "--debug"]
    return answered(lambda: _dispatch(words, own_process), debug="--debug" in argv)


def answered(command: Callable[[], int], *, debug: bool = False) -> int:
    """Run a command and return its exit code; an error is printed as one line, or raised if `debug` is true."""
    code = _answered(command, debug)
    with suppress(ValueError, AttributeError):  # there is no standard output
        try:  # report a closed pipe here, not at interpreter exit
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
            return error.exit_code  # of several processes with the same error, only the first prints it
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
            silence()  # standard output itself may be full
        return _fail(line + (" (add --debug for more)" if code == 70 else ""), code)
    finally:
        warnings.showwarning = shown


def _dispatch(argv: list[str], own_process: bool) -> int:
    dotted, words = _split_overrides(argv)
    named = next((word for word in words if not word.startswith("-")), None)
    if named is not None and named not in verbs():
        raise unknown_verb(named)
    if named is not None:  # before argparse reports missing arguments
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
    record = verbs()[arguments.verb]
    _refuse_unknown(arguments.verb, rest)
    values = {key: value for key, value in vars(arguments).items() if key not in ("verb", "version", "debug")}
    values |= {key: tuple(value) for key, value in values.items() if isinstance(value, list)}
    if issubclass(record, OverrideOptions):
        values["overrides"] = parse_overrides(rest)

    # Waiting threads sleep: on shared cores, spinning makes two threads slower than one.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    own = f"hmmscope.lab.verbs.{arguments.verb}:{arguments.verb}"
    module, _, name = str(getattr(record, "function", own)).partition(":")
    function = getattr(importlib.import_module(module), name)
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
        if os.environ.get("WORLD_SIZE", "1") != "1":  # torchrun workers end together
            raise
        raise InputError(
            f"{arguments.verb}: the model's code called sys.exit (SystemExit: {error.code}); remove this call from the code"
        ) from None
    for written in filter(None, (values.get(name) for name in ("out", "figures", "export"))):
        from hmmscope.lab.verbs.output_paths import under_seal

        under_seal(written)
    return code


def _refuse_unknown(verb: str, rest: Sequence[str]) -> None:
    record, options = verbs()[verb], _options(verbs()[verb])
    for word in rest:
        flag = word.partition("=")[0]
        if flag in (*options, "--help", "--version"):
            continue
        if flag in ("--seed", "--target") and issubclass(record, OverrideOptions):  # fields outside any section
            continue
        near = suggestion(flag, options) or difflib.get_close_matches(flag, options, 1, 0.85)
        if issubclass(record, OverrideOptions) and not near:
            continue
        if flag.startswith("--") and "." not in flag:
            raise unknown_name(f"hmmscope {verb}", flag, options)
        if not issubclass(record, OverrideOptions):
            raise InputError(f"{word}: unexpected word; see hmmscope {verb} --help")


def _with_options(error: UnknownNameError, verb: str, overrides: Mapping[str, str]) -> InputError:
    if not isinstance(error.name, str) or error.name not in overrides:
        return error
    flags = [f"--{name}" for name in error.known if name.isidentifier() and name != "name"]
    return unknown_name(f"hmmscope {verb}", f"--{error.name}", dict.fromkeys([*flags, *_options(verbs()[verb])]))


def _options(record: type) -> list[str]:
    named = [one for one in dataclasses.fields(record) if one.metadata and not one.metadata.get("place")]
    return [flag for one in named for flag in _flags(one)]


def _flags(one: dataclasses.Field) -> Sequence[str]:
    return one.metadata.get("flags") or (f"--{one.name.replace('_', '-')}",)


def _is_follower() -> bool:
    return os.environ.get("WORLD_SIZE", "1") != "1" and os.environ.get("RANK", "0") != "0"


def _warn(message: Warning | str, category: type[Warning], *where: object, **more: object) -> None:
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
