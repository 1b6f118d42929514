# Completion of reprobe for bash. Commands and options are those that --help prints, so that they are
# the installed tool's; behind -p come the probes of the files that stand on the line.

_reprobe_options() {  # of a command, or reprobe's own
  reprobe "$@" --help 2>/dev/null | grep -oE '^ +(-[a-zA-Z],)?--[a-z-]+' | grep -oE -- '-[-a-zA-Z]+'
}

_reprobe_commands() {
  reprobe --help 2>/dev/null | sed -n '/^Subcommands:/,/^$/s/^  \([a-z]*\) .*/\1/p'
}

_reprobe_probes() {
  local word
  for word in "${COMP_WORDS[@]:2}"; do
    [ -f "$word" ] && reprobe list "$word" 2>/dev/null | sed -n '3,$s/^ *[^ ]* *[a-z]* *[^ ]* *\([^ ]*:[^ ]*\).*/\1/p'
  done | sort -u
}

_reprobe() {
  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}
  # bash breaks words at colons: "demo:re" is three, and only the last is replaced.
  local whole=$current
  if [[ $previous == : ]] || [[ $current == : ]]; then
    local line=${COMP_LINE:0:COMP_POINT}
    whole=${line##*[[:space:]]}
    previous=${line%"$whole"}
    previous=${previous%"${previous##*[![:space:]]}"}
    previous=${previous##*[[:space:]]}
  fi
  if [ "$COMP_CWORD" -eq 1 ]; then
    mapfile -t COMPREPLY < <(compgen -W "$(_reprobe_commands) --help --version" -- "$current")
  elif [[ $previous == -p || $previous == --probe ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$(_reprobe_probes)" -- "$whole")
    [[ $whole != *:* ]] || COMPREPLY=("${COMPREPLY[@]#"${whole%:*}:"}")
  elif [[ $current == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$(_reprobe_options "${COMP_WORDS[1]}")" -- "$current")
  else
    compopt -o filenames 2>/dev/null
    mapfile -t COMPREPLY < <(compgen -f -- "$current")
  fi
}

complete -F _reprobe reprobe
