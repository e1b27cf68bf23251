#!/usr/bin/env bash
# A stock Linux kernel as the initiator: Debian's cloud kernel in an emulated machine, with
# open-iscsi, CHAP and both digests; ext4 written, verified after a new login, and again after the
# target was killed and started anew.
#   guest.sh [-t TARGET]
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
# shellcheck source=tests/interop/capture.sh
. "$ROOT/tests/interop/capture.sh"
TARGET=blockwire
while getopts t: opt; do
  case $opt in
  t) TARGET=$OPTARG ;;
  *) exit 2 ;;
  esac
done
"$ROOT/tests/setup.sh" guest capture
use_target "$TARGET"
DIR=$OUT/guest-$TARGET IMAGE=$OUT/guest-image
SECONDS_AT_MOST=240
USER_NAME=guest SECRET=not-a-secret-42
rm -rf "$DIR"
mkdir -p "$DIR"
"$ROOT/tests/guest/image.sh" "$IMAGE"

# A guest in software: every x86 since 2013, but for what QEMU 7.2 emulates wrongly (cmpxchg16b)
# or slowly (five-level page tables).
boot() {
  exec timeout -k 5 "$SECONDS_AT_MOST" qemu-system-x86_64 -M pc,usb=off -accel tcg,thread=multi,tb-size=256 \
    -cpu max,la57=off,cx16=off -smp 1 -m 512 -nodefaults -no-user-config -display none -no-reboot \
    -serial stdio -kernel "$IMAGE/vmlinux" -initrd "$IMAGE/initramfs" \
    -netdev user,id=net,ipv6=off,restrict=off -device virtio-net-pci,netdev=net \
    -append "console=ttyS0 quiet panic=-1 mitigations=off nokaslr random.trust_cpu=on no_timer_check \
tsc=reliable rcupdate.rcu_expedited=1 net.ifnames=0 bw.PORT=$PORT bw.IQN=$(iqn disk) bw.LUN=$(lun) \
bw.CHAP_USER=$USER_NAME bw.CHAP_SECRET=$SECRET"
}

target_chap "$DIR" "$USER_NAME" "$SECRET"
target_start "$DIR"
capture_start "$DIR/guest.pcapng" "$PORT"
mkfifo "$DIR/console"
boot >"$DIR/console" 2>&1 </dev/null &
guest=$!
ended_at_exit "$guest"
verdict=none
while IFS= read -r line; do
  line=${line%$'\r'}
  printf '%s\n' "$line" >>"$DIR/guest.log"
  case $line in
  @@kill)
    # tshark learns from the first data of a connection whether there are data digests. That it is
    # small cannot be had from a session that recovers, so the capture ends here, at rest.
    capture_end
    sleep 1 # amid the writing
    kill -9 "$TARGET_PID"
    wait "$TARGET_PID" 2>/dev/null || true
    target_start "$DIR"
    ;;
  @@exit*) verdict=${line#@@exit } ;;
  esac
done <"$DIR/console"
if [ "$verdict" != 0 ]; then
  tail -n 40 "$DIR/guest.log" >&2
  fail "the guest ended with: $verdict; see $DIR"
fi
capture_check "$DIR/guest.pcapng" "$PORT"
kill -0 "$TARGET_PID" || fail "the target died; see $DIR"
target_stop
say "guest: $(cat "$IMAGE/package") wrote and verified ext4 over a restart of the target"
