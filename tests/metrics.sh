# shellcheck shell=bash
# A daemon with metrics, and what it says of itself; sourced behind lib.sh.

# serve_metered DIR ARGUMENT...: serves on free ports; sets PORT (iSCSI), NVME_PORT, HTTP_PORT and TARGET_PID
serve_metered() {
  local dir=$1 n; shift
  "$BLOCKWIRE" serve --iscsi 127.0.0.1:0 --nvme 127.0.0.1:0 --http 127.0.0.1:0 --state "$dir/state" \
    --control "$dir/control.sock" "$@" >"$dir/stdout" 2>"$dir/stderr" </dev/null &
  TARGET_PID=$!
  ended_at_exit "$TARGET_PID"
  wait_until "${SERVE_WITHIN:-20}" grep -qx ready "$dir/stdout" || { tail -n 20 "$dir/stderr" >&2; fail "it does not come up"; }
  for n in iscsi:PORT nvme:NVME_PORT http:HTTP_PORT; do
    printf -v "${n#*:}" '%s' "$(sed -n "s/^listening ${n%:*} .*:\([0-9]*\)\$/\1/p" "$dir/stdout" | head -n 1)"
  done
}

# metrics PATH [FIELD]: the body of an answer
metrics() {
  local line
  exec 7<>"/dev/tcp/127.0.0.1/$HTTP_PORT"
  printf 'GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\n%s\r\n' "$1" "${2:+$2$'\r\n'}" >&7
  read -r line <&7
  case $line in *" 200 OK"*) ;; *) fail "$1: $line" ;; esac
  while read -r line <&7 && [ "$line" != $'\r' ]; do :; done
  cat <&7
  exec 7>&-
}
