# shellcheck shell=bash
# An emulated machine with a stock kernel that runs one job; sourced after lib.sh.
#
# The job's output comes over the serial line. A line `@@do WORDS` asks this side for something: it
# calls `guest_asks WORDS`, which the script defines, answers `ok`, and then runs what was left in
# GUEST_THEN.
GUEST_THEN=
# More words for QEMU, and for its network.
GUEST_QEMU=()
GUEST_NET=

# guest_machine IMAGE JOB KEY=VALUE...: the words that start the machine, into GUEST_MACHINE
guest_machine() {
  local image=$1 job=$2 setting words=; shift 2
  for setting in "$@"; do words+=" bw.$setting"; done
  # A guest in software: every x86 since 2013, but for what QEMU 7.2 emulates wrongly (cmpxchg16b)
  # or slowly (five-level page tables).
  GUEST_MACHINE=(qemu-system-x86_64 -M "pc,usb=off" -accel "tcg,thread=multi,tb-size=256"
    -cpu "max,la57=off,cx16=off" -smp "${GUEST_CPUS:-1}" -m "${GUEST_MEMORY:-512}" -nodefaults -no-user-config
    -display none -no-reboot -serial stdio -kernel "$image/vmlinux" -initrd "$image/initramfs"
    ${GUEST_QEMU[@]+"${GUEST_QEMU[@]}"}
    -netdev "user,id=net,ipv6=off,restrict=off$GUEST_NET" -device "virtio-net-pci,netdev=net"
    -append "console=ttyS0 quiet panic=-1 mitigations=off nokaslr random.trust_cpu=on no_timer_check \
tsc=reliable rcupdate.rcu_expedited=1 net.ifnames=0 bw.JOB=$job$words")
}

# guest_boot IMAGE JOB SECONDS KEY=VALUE...: the machine, as the running process
guest_boot() {
  local image=$1 job=$2 seconds=$3; shift 3
  guest_machine "$image" "$job" "$@"
  exec timeout -k 5 "$seconds" "${GUEST_MACHINE[@]}"
}

# guest_run DIR IMAGE JOB SECONDS KEY=VALUE...: runs the job to its end; fails unless it ends with 0
guest_run() {
  local dir=$1 line verdict=none guest; shift
  rm -f "$dir/console" "$dir/answers"
  mkfifo "$dir/console" "$dir/answers"
  guest_boot "$@" <"$dir/answers" >"$dir/console" 2>&1 &
  guest=$!
  ended_at_exit "$guest"
  exec {answers}>"$dir/answers"
  while IFS= read -r line; do
    line=${line%$'\r'}
    printf '%s\n' "$line" >>"$dir/guest.log"
    case $line in
    @@do\ *)
      # shellcheck disable=SC2086
      guest_asks ${line#@@do }
      echo ok >&"$answers"
      [ -z "$GUEST_THEN" ] || "$GUEST_THEN"
      GUEST_THEN=
      ;;
    @@exit*) verdict=${line#@@exit } ;;
    esac
  done <"$dir/console"
  exec {answers}>&-
  if [ "$verdict" != 0 ]; then
    tail -n 60 "$dir/guest.log" >&2
    fail "the guest ended with: $verdict; see $dir"
  fi
}
