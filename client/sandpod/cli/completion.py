"""`sandpod completion`: prints what makes bash, zsh or fish complete commands, options and profiles.

The shell asks the program itself, by `sandpod completion --words WORD ...`, which costs nothing until a key is pressed.
"""

import argparse
import sys
from typing import Any, Final

from sandpod.cli.server_program import SERVER_COMMANDS
from sandpod.endpoint import LOCAL, read_profiles

_SCRIPTS: Final = {
    # Not with `compgen -W`, which expands each word as the shell does a command line.
    "bash": """\
_sandpod() {
  local word
  COMPREPLY=()
  while IFS= read -r word; do
    printf -v word %q "$word"
    COMPREPLY+=("$word")
  done < <(sandpod completion --words "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -o default -F _sandpod sandpod
""",
    "zsh": """\
#compdef sandpod
_sandpod() {
  local -a found
  found=("${(@f)$(sandpod completion --words "${(@)words[2,CURRENT]}" 2>/dev/null)}")
  compadd -- $found || _files
}
compdef _sandpod sandpod
""",
    "fish": """\
complete -c sandpod -a '(sandpod completion --words (commandline -opc)[2..] (commandline -ct) 2>/dev/null)'
""",
}


def add_parser(commands: Any, parser: argparse.ArgumentParser) -> None:
    """Add the command to the parser's subcommands; `parser` is the whole."""
    completion = commands.add_parser(
        "completion", help="print what makes a shell complete: source <(sandpod completion bash)"
    )
    completion.add_argument("shell", nargs="?", choices=sorted(_SCRIPTS))
    completion.add_argument("--words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    completion.set_defaults(command=lambda arguments: _complete(arguments, parser, commands))


def _complete(arguments: argparse.Namespace, parser: argparse.ArgumentParser, commands: Any) -> int:
    if arguments.words is None:
        if arguments.shell is None:
            parser.error("completion: name bash, zsh or fish")
        sys.stdout.write(_SCRIPTS[arguments.shell])
        return 0
    typed = sys.argv[sys.argv.index("--words") + 1 :]  # the parser takes a -- out
    sys.stdout.write("".join(f"{word}\n" for word in words(typed, commands.choices)))
    return 0


def words(typed: list[str], parsers: dict[str, argparse.ArgumentParser]) -> list[str]:
    """Return what may stand in place of the last word."""
    *before, last = typed or [""]
    before = [word for word in before if word != "="]  # bash makes three words of --by=user
    last = "" if last == "=" else last
    if not before:
        found = [*parsers, *SERVER_COMMANDS]
    elif before[0] not in parsers:
        return []
    elif before[-1] == "--profile":
        found = [*read_profiles().profiles, LOCAL]
    else:
        found = _of_parser(parsers[before[0]], before[1:])
    return sorted(word for word in found if word.startswith(last))


def _of_parser(parser: argparse.ArgumentParser, before: list[str]) -> list[str]:
    """Return subcommands, options and choices that may come after these words of a command."""
    actions = parser._actions  # noqa: SLF001 - there is no public way to a parser's options
    for action in actions:
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - as above
            for at, word in enumerate(before):
                if word in action.choices:
                    return _of_parser(action.choices[word], before[at + 1 :])
        if before and before[-1] in action.option_strings and action.choices is not None:
            return [str(choice) for choice in action.choices]
    options = [option for action in actions for option in action.option_strings if option.startswith("--")]
    places = [str(choice) for action in actions if not action.option_strings for choice in action.choices or ()]
    return [*places, *options]
