# shellcheck shell=bash
# apt's programs with the sources of another Debian suite; the machine's own stay as they are.
# Sourced after lib.sh.

# in_suite SUITE PROGRAM ARGS...: with an empty SUITE, the machine's own sources
in_suite() {
  local suite=$1 program=$2 lists=$OUT/apt-$1; shift 2
  if [ -z "$suite" ]; then
    "$program" "$@"
    return
  fi
  local options=(-o "Dir::Etc::sourcelist=$lists/sources.list" -o Dir::Etc::sourceparts=-
    -o "Dir::State::lists=$lists/lists" -o "Dir::Cache=$lists/cache")
  if [ ! -e "$lists/sources.list" ]; then
    mkdir -p "$lists/lists/partial" "$lists/cache/archives/partial"
    printf 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s %s main\n' \
      "$(debian_mirror)" "$suite" >"$lists/sources.new"
    quietly apt-suite apt-get "${options[@]/sources.list/sources.new}" update -q
    mv "$lists/sources.new" "$lists/sources.list"
  fi
  "$program" "${options[@]}" "$@"
}
