# shellcheck shell=bash
# What the test scripts share; sourced, starts nothing.
#
# Everything that a run makes lies under $OUT, in the build directory. A script ends only
# processes that it started: their ids go through `ended_at_exit`.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
BUILD=${CARGO_TARGET_DIR:-$ROOT/target}
OUT=$BUILD/interop
PATH=$PATH:/usr/sbin:/sbin
[ -x "$HOME/.cargo/bin/cargo" ] && PATH=$HOME/.cargo/bin:$PATH
mkdir -p "$OUT"

say() { printf '%s\n' "$*"; }
fail() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; exit 1; }

# now: microseconds
now() { printf '%s' "${EPOCHREALTIME/[.,]/}"; }
# since START: the time from START (of `now`) as seconds with one digit behind the point
since() { local d=$(($(now) - $1)); printf '%d.%d' $((d / 1000000)) $((d % 1000000 / 100000)); }

# gone DIR: removes what an earlier run of the script made under $OUT; never through a link or a mount
gone() {
  local dir=$1 at real
  [ "${dir#"$OUT"/}" != "$dir" ] || fail "$dir is not under $OUT: it stays"
  [ ! -L "$dir" ] || fail "$dir is a link: it stays"
  real=$(realpath -m "$dir")
  while read -r _ _ _ _ at _; do
    case $at in "$real" | "$real"/*) fail "$at is mounted since an earlier run: umount it first" ;; esac
  done </proc/self/mountinfo
  rm -rf --one-file-system "$dir"
}

# --- processes ------------------------------------------------------------------------------
PIDS=()
declare -A BEGAN=()
# began PID: when it began, in ticks since boot; nothing if it is not there. Process ids are given again.
began() {
  local stat
  read -r stat 2>/dev/null <"/proc/$1/stat" || return 0
  # The name, in parentheses, may hold blanks; behind it stand the fields from the third on.
  read -ra stat <<<"${stat##*) }"
  printf '%s' "${stat[19]}"
}
ended_at_exit() { PIDS+=("$1"); BEGAN[$1]=$(began "$1"); }
end_all() {
  local pid
  for pid in ${PIDS[@]+"${PIDS[@]}"}; do end "$pid"; done
  PIDS=()
}
# end PID: ask, wait five seconds, insist; nothing is done to another process that has its id by now
end() {
  local n
  [ -n "$1" ] || return 0
  [ "${BEGAN[$1]-$(began "$1")}" = "$(began "$1")" ] || return 0
  kill "$1" 2>/dev/null || return 0
  for ((n = 0; n < 50; n++)); do
    kill -0 "$1" 2>/dev/null || { wait "$1" 2>/dev/null || true; return 0; }
    sleep 0.1
  done
  kill -9 "$1" 2>/dev/null || true
  wait "$1" 2>/dev/null || true
}
trap end_all EXIT
trap 'exit 130' INT TERM

# wait_until SECONDS COMMAND...: tries the command ten times a second
wait_until() {
  local n=$(($1 * 10)); shift
  while ! "$@" >/dev/null 2>&1; do
    n=$((n - 1))
    [ "$n" -gt 0 ] || return 1
    sleep 0.1
  done
}

# free_port: a port of 127.0.0.1 that nobody listens on, below those that the system itself gives
# away: a target that is started again finds it free
free_port() {
  local port
  while :; do
    port=$((10240 + RANDOM % 20000))
    (: <>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || { echo "$port"; return; }
  done
}

# --- what runs ------------------------------------------------------------------------------
# quietly NAME COMMAND...: shows the output of the command only if it fails
quietly() {
  local log=$OUT/$1.log rc=0; shift
  "$@" >"$log" 2>&1 </dev/null || rc=$?
  [ "$rc" = 0 ] || { tail -n 60 "$log" >&2; printf 'whole output: %s\n' "$log" >&2; }
  return "$rc"
}

# release_build CARGO_ARGUMENT...: builds the binary for release. It records the commit and the flags that it was
# built from, which reports of evaluations show. All builds go by here, so that none is done twice.
release_build() {
  local commit
  commit=$(git -C "$ROOT" rev-parse HEAD 2>/dev/null || true)
  [ -z "$commit" ] || git -C "$ROOT" diff --quiet HEAD 2>/dev/null || commit+=" with changes"
  (cd "$ROOT" && BLOCKWIRE_COMMIT=$commit BLOCKWIRE_FLAGS=${RUSTFLAGS:-${CARGO_ENCODED_RUSTFLAGS:-}} \
    cargo build --locked --release -p blockwire -p blockwire-capi "$@")
}

# xtask ARGS...: the checks of the project
xtask() { (cd "$ROOT" && cargo run --quiet --locked -p xtask -- "$@"); }

# server_cpu PID: processor time that a process has used, in clock ticks
server_cpu() {
  local stat; stat=$(<"/proc/$1/stat"); stat=${stat##*) }
  # shellcheck disable=SC2086
  set -- $stat
  echo $((${12} + ${13}))
}

# use_target NAME: loads the adapter of a target: target_start, target_stop, url, iqn
use_target() {
  local adapter=$ROOT/tests/interop/targets/$1.sh
  [ -e "$adapter" ] || fail "no such target: $1 ($adapter)"
  # shellcheck source=/dev/null
  . "$adapter"
}

# download_dir DIR: makes a directory that apt's programs can write to, and no other user
download_dir() {
  mkdir -p "$1"
  # As root they download as a user of their own.
  [ "$(id -u)" != 0 ] || chown _apt "$1"
}

# debian_mirror: where this machine takes its Debian packages from
debian_mirror() {
  local mirror
  mirror=$(grep -rhoE 'https?://[^ ]+/debian/?( |$)' /etc/apt/sources.list /etc/apt/sources.list.d 2>/dev/null |
    head -n 1 | tr -d ' ')
  printf '%s' "${mirror:-http://deb.debian.org/debian}"
}
