# For scripts that run a command before each of several programs, which read this. They set $command, in whose words {} stands for
# a program's name, and $work, where what the programs print goes. PROGRAMS="python perl" has only these run.

# wanted NAME NEED: whether NAME is to run, and the program that it needs is here; if not, that is said.
wanted() {
    case " ${PROGRAMS:-$1} " in *" $1 "*) ;; *) return 1 ;; esac
    command -v "$2" > /dev/null || {
        echo "$1: skipped, there is no $2" >&2
        return 1
    }
}

# try NAME NEED PROGRAM...
try() {
    wanted "$1" "$2" || return 0
    name=$1
    shift 2
    echo "== $name" >&2
    # Words of the command have no spaces.
    $(echo "$command" | sed "s|{}|$name|g") "$@" > "$work/$name.out" || echo "$name: status $?" >&2
}
