# What the engines' install.sh and serve.sh share. Sourced by their env.sh, which then
# sets ENGINE (its name in messages), VENV, REQUIREMENTS (a lock file) and NEED_MB.

ENGINES=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
CACHE=${INFERSPAN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/inferspan}
# INFERSPAN_MODEL is another path of the same model, for recordings that name no folder of this machine.
MODEL=${INFERSPAN_MODEL:-$CACHE/tiny}

say() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; }
die() { say "$*"; exit 1; }

# --- Installing ---

# stamp_of WORD [FILE]...: changes with the word and the contents of the files.
stamp_of() {
	local word=$1
	shift
	{ echo "$word"; cat "$@"; } | sha256sum | cut -d' ' -f1
}

# stamped DIR STAMP: DIR is complete, with this stamp.
stamped() { [ "$(cat "$1/.complete" 2>/dev/null)" = "$2" ]; }

# installing WHAT: runs install_missing unless complete says that all is there, in the
# cache folder, one run at a time. Both are functions of the caller.
installing() {
	mkdir -p "$CACHE"
	if complete; then
		say "$1 and the tiny model are in $CACHE"
		return
	fi
	exec 9>"$CACHE/.lock"
	if ! flock -n 9; then
		say "another run is installing, waiting for it"
		flock 9
	fi
	trap 'exit 143' TERM
	trap 'exit 130' INT
	install_missing
	say "done in $SECONDS s: $CACHE"
}

is_python312() {
	[ -n "$1" ] && "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, 12))' >/dev/null 2>&1
}

find_python() {
	local p
	for p in "${INFERSPAN_PYTHON:-}" "$(command -v python3.12 || true)" \
		"${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.12.*/bin/python3.12 \
		"$(uv python find 3.12 2>/dev/null || true)" "$(command -v python3 || true)"; do
		if is_python312 "$p"; then
			echo "$p"
			return
		fi
	done
	return 1
}

# beat PID LOG: a line every 15 seconds while pip runs, so that a slow network does
# not look like a hang.
beat() {
	local start=$SECONDS
	while sleep 15 && kill -0 "$1" 2>/dev/null; do
		say "$((SECONDS - start)) s: $(grep -c '^Collecting' "$2") packages fetched, $(du -sh "$VENV" 2>/dev/null | cut -f1) installed"
	done
}

# install_packages [PIP OPTION]...: a new environment in VENV with REQUIREMENTS.
install_packages() {
	local python free log=$CACHE/install-$(basename "$VENV").log
	python=$(find_python) || die "no Python 3.12 with venv found on PATH, in pyenv or in uv: install one (pyenv install 3.12, uv python install 3.12) or name it in INFERSPAN_PYTHON"
	[ "$(uname -m)" = x86_64 ] || die "the pinned packages are for x86_64, this is $(uname -m)"
	free=$(df -Pm "$CACHE" | awk 'NR == 2 { print $4 }')
	[ "$free" -ge "$NEED_MB" ] || die "$CACHE has $free MB free, $NEED_MB are needed"

	say "$ENGINE into $VENV, with $python"
	rm -rf "$VENV"
	"$python" -m venv "$VENV"
	say "downloading and installing $(grep -c == "$REQUIREMENTS") packages (3 GB)"
	"$VENV/bin/python" -m pip install --no-deps --require-hashes --only-binary=:all: \
		--disable-pip-version-check --no-compile --progress-bar off "$@" \
		-r "$REQUIREMENTS" >"$log" 2>&1 &
	local pip=$!
	# pip keeps the lock for as long as it writes; the messages must not.
	beat "$pip" "$log" 9>&- &
	trap "kill $pip $! 2>/dev/null || true" EXIT
	if ! wait "$pip"; then
		tail -n 5 "$log" >&2
		die "installing the packages failed, see $log"
	fi
}

# site_packages: the folder that they are in.
site_packages() { "$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])'; }

model_stamp() { sha256sum <"$ENGINES/mkmodel.py" | cut -d' ' -f1; }

install_model() {
	say "tiny model into $CACHE/tiny"
	rm -rf "$CACHE/tiny"
	"$VENV/bin/python" "$ENGINES/mkmodel.py" "$CACHE/tiny"
	model_stamp >"$CACHE/tiny/.complete"
}

# --- Serving ---

healthy() {
	local line
	exec 3<>"/dev/tcp/127.0.0.1/$1" || return 1
	printf 'GET /health HTTP/1.0\r\n\r\n' >&3
	read -r -t 5 line <&3 || line=
	exec 3>&-
	[[ $line == *" 200 "* ]]
} 2>/dev/null

# descendants PID: the process and everything below it, parents first.
descendants() {
	local child
	echo "$1"
	for child in $(cat "/proc/$1/task/"*/children 2>/dev/null); do
		descendants "$child"
	done
}

# starttime PID: tells a process from a later one with the same PID.
starttime() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20; }

# running PID: it exists and is more than a zombie that waits for its parent.
running() {
	local state
	state=$(sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -c1)
	[ -n "$state" ] && [ "$state" != Z ]
}

# family PID: descendants of the process, and what else is in its session: children that
# lost their parent. Each as PID:STARTTIME.
family() {
	local f line fields p
	for p in $(
		descendants "$1"
		for f in /proc/[0-9]*/stat; do
			line=$(cat "$f" 2>/dev/null) || continue
			fields=(${line##*) })
			[ "${fields[3]:-}" != "$1" ] || echo "${f//[!0-9]/}"
		done
	); do
		echo "$p:$(starttime "$p")"
	done
}

# stop PID: ends the process, one that start started, and its children, and returns
# when they are gone.
stop() {
	local pid=$1 p tree alive i
	running "$pid" || return 0
	# One that was killed has no command line while it goes.
	for ((i = 0; i < 150; i++)); do
		[ -z "$(tr -d '\0' <"/proc/$pid/cmdline" 2>/dev/null)" ] || break
		running "$pid" || return 0
		sleep 0.2
	done
	# The command line of the server names the model; anything else is not ours to end.
	tr '\0' ' ' <"/proc/$pid/cmdline" | grep -qF "$MODEL" || die "process $pid is not the engine that this script starts"
	tree=$(family "$pid")
	kill "$pid" 2>/dev/null || true
	for ((i = 0; i < 150; i++)); do
		# It may have started more before it got the signal.
		if [ $((i % 10)) -eq 9 ]; then tree=$(printf '%s\n' $tree $(family "$pid") | sort -u); fi
		alive=
		for p in $tree; do
			[ "$(starttime "${p%%:*}")" = "${p#*:}" ] && running "${p%%:*}" || continue
			alive+=" ${p%%:*}"
		done
		[ -n "$alive" ] || return 0
		# Children that outlive a clean shutdown by 20 s are ended hard.
		if [ $i -ge 100 ] && [ $((i % 10)) -eq 0 ]; then kill -KILL $alive 2>/dev/null || true; fi
		sleep 0.2
	done
	die "processes$alive did not end"
}

# start [--port N] [--log FILE] [--timeout SECONDS] [-- FLAGS]: starts the engine by
# launch PORT [FLAGS], a function of the caller that replaces its shell by the server;
# waits until it is healthy and prints its PID.
start() {
	local port=8000 log='' timeout=400 name=${ENGINE%% *}
	while [ $# -gt 0 ]; do
		case $1 in
		--port) port=$2; shift 2 ;;
		--log) log=$2; shift 2 ;;
		--timeout) timeout=$2; shift 2 ;;
		--) shift; break ;;
		*) usage ;;
		esac
	done
	[ -f "$VENV/.complete" ] && [ -f "$MODEL/config.json" ] || die "no $ENGINE in $CACHE: run install.sh first"
	[ -n "$log" ] || log=$(mktemp "${TMPDIR:-/tmp}/${name,,}-XXXXXX.log")
	if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then die "port $port is in use"; fi

	# One compute thread: the tests share few cores with the engine.
	export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 DO_NOT_TRACK=1 OMP_NUM_THREADS=1
	# setsid has no need to fork in a subshell, so that the PID is the server's.
	launch "$port" "$@" </dev/null >"$log" 2>&1 9>&- &
	local pid=$! end=$((SECONDS + timeout))
	until healthy "$port"; do
		if ! kill -0 "$pid" 2>/dev/null; then
			tail -n 20 "$log" >&2
			die "$name ended while starting, see $log"
		fi
		if [ $SECONDS -ge $end ]; then
			stop "$pid"
			die "$name was not healthy after $timeout s, see $log"
		fi
		sleep 0.5
	done
	say "$name serves on 127.0.0.1:$port, log in $log"
	echo "$pid"
}

# serve COMMAND [ARGUMENT]...: what serve.sh does.
serve() {
	case ${1:-} in
	start) shift; start "$@" ;;
	stop) [ $# -eq 2 ] || usage; stop "$2" ;;
	*) usage ;;
	esac
}

# usage: the lines of the script's head that begin with "usage:" or go on from there.
usage() {
	sed -n '/^# usage:/,/^#$/s/^# //p' "$0" >&2
	exit 2
}
