# For scripts that run a command before each of several programs, and begin with reading this:
# SCRIPT DIRECTORY COMMAND... In the command's words {} stands for a program's name; what the
# programs print goes to the directory, $work. The script's own is $here. PROGRAMS="python perl" has
# only these run.
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
work=$(cd "$1" && pwd)
shift
command=$*

# wanted NAME NEED: whether NAME is to run, and the program that it needs is here; if not, that is
# said.
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
