# Completion of reprobe for fish. Commands and options are those that --help prints; behind -p come the
# probes of the files that stand on the line.

function __reprobe_commands
    reprobe --help 2>/dev/null | sed -n '/^Subcommands:/,/^$/s/^  \([a-z]*\)  *\(.*\)/\1\t\2/p'
end

function __reprobe_command
    set -l words (commandline -opc)
    test (count $words) -ge 2; and echo $words[2]
end

function __reprobe_options
    reprobe (__reprobe_command) --help 2>/dev/null | string match -rg '^ +(?:-[a-zA-Z],)?(--[a-z-]+)'
end

function __reprobe_probes
    for word in (commandline -opc)[3..]
        test -f $word
        and reprobe list $word 2>/dev/null | sed -n '3,$s/^ *[^ ]* *[a-z]* *[^ ]* *\([^ ]*:[^ ]*\).*/\1/p'
    end | sort -u
end

function __reprobe_wants_probe
    set -l words (commandline -opc)
    contains -- $words[-1] -p --probe
end

complete -c reprobe -n 'test (count (commandline -opc)) -eq 1' -f -a '(__reprobe_commands)'
complete -c reprobe -n 'test (count (commandline -opc)) -ge 2; and string match -q -- "-*" (commandline -ct)' -f -a '(__reprobe_options)'
complete -c reprobe -n __reprobe_wants_probe -f -a '(__reprobe_probes)'
