"""`tidegate completion`: scripts for shell completion.

The scripts contain no words: at each TAB they call `tidegate completion --line` with the line so far. Its candidates
come from the parser (`completion_candidates.py`), so they are always current, and include pipelines and checkpoints.

argcomplete would save the scripts and the walk along the words, but not the candidates. It is not used: its script for
fish sorts words, while checkpoints are offered newest first; it has nothing like `--line`; and it would be one more
dependency of the core.
"""

from __future__ import annotations

import argparse
from typing import Any

from tidegate.cli.completion_candidates import complete
from tidegate.cli.output import Output, clean
from tidegate.errors import Invalid

__all__ = ["SCRIPTS", "add_parser", "run"]

BASH = r"""# tidegate's words for bash: in ~/.bashrc, eval "$(tidegate completion bash)"
_tidegate() {
    local line="${COMP_LINE:0:COMP_POINT}" IFS=$'\n' found current head=""
    current="${line##*[[:space:]]}"
    # bash splits words at these characters, and expects only the part after the last one.
    [[ "$COMP_WORDBREAKS" == *:* && "$current" == *:* ]] && head="${current%"${current##*:}"}"
    [[ "$COMP_WORDBREAKS" == *=* && "$current" == *=* ]] && head="${current%"${current##*=}"}"
    COMPREPLY=()
    for found in $("${COMP_WORDS[0]}" completion --line "$line" 2>/dev/null); do
        found="${found%%$'\t'*}"
        COMPREPLY+=("${found#"$head"}")
    done
    [[ ${#COMPREPLY[@]} == 1 && "${COMPREPLY[0]}" == *= ]] && compopt -o nospace
    return 0
}
complete -o default -o nosort -F _tidegate tidegate
"""

ZSH = r"""#compdef tidegate
# tidegate's words for zsh: in ~/.zshrc after compinit, eval "$(tidegate completion zsh)"
_tidegate() {
    local line="${(j: :)words[1,CURRENT-1]} $PREFIX"
    local -a found
    found=(${(f)"$(${words[1]} completion --line "$line" 2>/dev/null)"})
    found=("${(@)found//:/\\:}")
    found=("${(@)found/$'\t'/:}")
    found=("${(@)found%:}")
    if (( $#found )); then
        _describe -V 'tidegate' found
    else
        _files
    fi
}
compdef _tidegate tidegate
"""

FISH = r"""# tidegate's words for fish: tidegate completion fish > ~/.config/fish/completions/tidegate.fish
function __tidegate_words
    set -l line (commandline -cp)
    set -l called (commandline -opc)
    $called[1] completion --line "$line" 2>/dev/null
end
complete -c tidegate -f -k -a '(__tidegate_words)'
"""

SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "completion",
        help="shell completion for commands, pipelines and checkpoints",
        description="Print the script that lets a shell complete tidegate's commands, options, pipelines, checkpoints, "
        "sinks, operators, savepoints and settings. At each TAB it calls tidegate; nothing is run or written.",
        epilog='examples:\n  eval "$(tidegate completion bash)"      # in ~/.bashrc\n'
        '  eval "$(tidegate completion zsh)"       # in ~/.zshrc, after compinit\n'
        "  tidegate completion fish > ~/.config/fish/completions/tidegate.fish",
    )
    parser.add_argument("shell", nargs="?", choices=list(SCRIPTS), metavar="SHELL", help="bash, zsh or fish")
    parser.add_argument(
        "--line", metavar="TEXT", help="list the completions of this line, each with a tab and its meaning"
    )


def run(args: argparse.Namespace, out: Output) -> int:
    if args.line is not None:
        candidates = complete(args.line)
        out.document({"words": [{"word": word, "what": meaning} for word, meaning in candidates]})
        for word, meaning in candidates:
            if not out.json:
                print(f"{clean(word)}\t{clean(meaning)}", file=out.out)
        return 0
    if args.shell is None:
        raise Invalid(
            "no shell was named", expected=" or ".join(SCRIPTS), help="tidegate completion bash", reason="USAGE"
        )
    out.document({"shell": args.shell, "script": SCRIPTS[args.shell]})
    if not out.json:
        print(SCRIPTS[args.shell], end="", file=out.out)
    return 0
