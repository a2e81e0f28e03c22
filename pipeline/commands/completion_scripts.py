"""Completion in bash, zsh and fish: of commands, options, experiments and jobs, and of keys and their values.

``pipeline completion SHELL`` prints what a shell has to know: for each word that is to be completed it asks
``pipeline complete -- WORDS``, which answers with a line for each candidate (`commands.completion`).
"""

from __future__ import annotations

from enum import Enum


class Shell(Enum):
    """Shells that completion is for."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"


SCRIPTS = {
    Shell.bash: """\
_pipeline_words() {  # program, then the words before the cursor: what there is to choose from
    local current=${words[-1]} kept
    local IFS=$'\\n'
    COMPREPLY=($("$@" 2>/dev/null))
    # Outside of quotes bash replaces only what comes after its last word break.
    kept=${current%"${current##*[=:]}"}
    if [[ $COMP_WORDBREAKS == *=* && -z $quoted ]]; then COMPREPLY=("${COMPREPLY[@]#"$kept"}"); fi
    if [[ ${COMPREPLY[0]} == *[=.] ]]; then compopt -o nospace 2>/dev/null; fi
}
_pipeline() {
    # COMP_WORDS is broken at each = and :, so the line is taken apart here: a space in quotes ends no word.
    local line=${COMP_LINE:0:COMP_POINT} words=() word= quote= quoted= char at
    for ((at = 0; at < ${#line}; at++)); do
        char=${line:at:1}
        if [[ $quote ]]; then
            if [[ $char == "$quote" ]]; then quote=; else word+=$char; fi
        elif [[ $char == [\\"\\'] ]]; then
            quote=$char
            if [[ -z $word ]]; then quoted=1; fi
        elif [[ $char == ' ' ]]; then
            if [[ $word ]]; then words+=("$word"); fi
            word= quoted=
        else
            if [[ $char == "\\\\" ]]; then ((at++)); char=${line:at:1}; fi
            word+=$char
        fi
    done
    words+=("$word")
    case "$1 ${words[1]} ${words[2]}" in
        *python*' -m pipeline') _pipeline_words "$1" -m pipeline complete -- "${words[@]:3}" ;;
        *python*' '*run_parallel.py' '*) _pipeline_words "$1" -m pipeline complete -- run "${words[@]:2}" ;;
        *python*) return 1 ;;
        *) _pipeline_words "$1" complete -- "${words[@]:1}" ;;
    esac
}
complete -o bashdefault -o default -F _pipeline pipeline python python3
""",
    Shell.zsh: """\
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
_pipeline_words() {  # program and words: what there is to choose from
    local -a found open closed
    found=("${(@f)$("$@" 2>/dev/null)}")
    open=(${(M)found:#*[=.]}) closed=(${found:#*[=.]})
    (( $#open )) && compadd -S '' -- $open
    (( $#closed )) && compadd -- $closed
    (( $#open + $#closed )) || _files
}
_pipeline() {
    local program=${words[1]}
    local -a given=("${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}")
    case "$program ${words[2]} ${words[3]}" in
        *python*' -m pipeline') _pipeline_words $program -m pipeline complete -- "${(@)given[3,-1]}" ;;
        *python*' '*run_parallel.py*) _pipeline_words $program -m pipeline complete -- run "${(@)given[2,-1]}" ;;
        *python*) _files ;;
        *) _pipeline_words $program complete -- "${(@)given}" ;;
    esac
}
compdef _pipeline pipeline python python3
""",
    Shell.fish: """\
function __pipeline_words
    # The last word comes as it was typed; a quote that is still open is no part of it.
    set -l words (commandline -opc) (string replace -ra '["\\'\\\\\\\\]' '' -- (commandline -ct))
    set -l found
    if string match -q '*python*' -- $words[1]
        if test "$words[2] $words[3]" = '-m pipeline'
            set found ($words[1] -m pipeline complete -- $words[4..-1] 2>/dev/null)
        else if string match -q '*run_parallel.py' -- $words[2]
            set found ($words[1] -m pipeline complete -- run $words[3..-1] 2>/dev/null)
        end
    else
        set found ($words[1] complete -- $words[2..-1] 2>/dev/null)
    end
    if count $found >/dev/null
        printf '%s\\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c pipeline -f -a '(__pipeline_words)'
for python in python python3
    complete -c $python -n 'string match -qr "run_parallel.py|-m pipeline" -- "$(commandline -cp)"' -f \
        -a '(__pipeline_words)'
end
""",
}
