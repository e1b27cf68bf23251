# nvmet, Linux's own NVMe/TCP target, by its configfs.
#   start OWN ADDRESSES PORT COUNT MIB BACKED   subsystems OWN-0 to OWN-COUNT, one null_blk each, memory-backed or
#                                               not, at PORT of ADDRESS,...
#   stop OWN                                    takes away what start made
# Nobody else has a name that begins with OWN; what does not is not touched. A port has no name: ours are those
# that have our subsystems.
CONFIG=${CONFIG:-/sys/kernel/config}
NVMET=$CONFIG/nvmet
BASE=nqn.2026-11.io.blockwire

put() { printf %s "$1" >"$2" || { echo "$2 takes no $1" >&2; exit 1; }; }

# A port of a number that nobody has: mkdir makes it, or fails because it is there.
port() {
  id=$(($$ % 30000 + 20000)) last=$((id + 500))
  until mkdir "$NVMET/ports/$id" 2>/dev/null; do
    id=$((id + 1))
    [ "$id" -lt "$last" ] || { echo "$NVMET/ports: none can be made" >&2; exit 1; }
  done
  port=$NVMET/ports/$id
  # Until it has a subsystem of ours nothing tells whose it is.
  trap 'rmdir "$port" 2>/dev/null' EXIT
}

start() {
  modprobe -a nvmet nvmet_tcp || exit 1
  modprobe null_blk nr_devices=0 || exit 1
  [ -d "$NVMET" ] || mount -t configfs configfs "$CONFIG" || exit 1
  n=0
  while [ "$n" -lt "$4" ]; do
    disk=$CONFIG/nullb/$1-$n subsystem=$NVMET/subsystems/$BASE:$1-$n
    mkdir "$disk" || exit 1
    put "$5" "$disk/size"
    put 512 "$disk/blocksize"
    put "$6" "$disk/memory_backed"
    put 1 "$disk/power"
    # Newer kernels call the device as its directory, older ones number it.
    device=/dev/$1-$n
    [ -b "$device" ] || device=/dev/nullb$(cat "$disk/index")
    mkdir "$subsystem" && mkdir "$subsystem/namespaces/1" || exit 1
    put 1 "$subsystem/attr_allow_any_host"
    put "$device" "$subsystem/namespaces/1/device_path"
    put 1 "$subsystem/namespaces/1/enable"
    n=$((n + 1))
  done
  for address in $(echo "$2" | tr , ' '); do
    port
    put tcp "$port/addr_trtype"
    case $address in *:*) put ipv6 "$port/addr_adrfam" ;; *) put ipv4 "$port/addr_adrfam" ;; esac
    put "$address" "$port/addr_traddr"
    put "$3" "$port/addr_trsvcid"
    n=0
    while [ "$n" -lt "$4" ]; do
      ln -s "$NVMET/subsystems/$BASE:$1-$n" "$port/subsystems/$BASE:$1-$n" || exit 1
      n=$((n + 1))
    done
    trap - EXIT
  done
}

stop() {
  for link in "$NVMET"/ports/*/subsystems/"$BASE:$1"-*; do
    [ -L "$link" ] || continue
    rm -f "$link"
    port=${link%/subsystems/*}
    # The last of ours is gone, and nobody else's is there.
    rmdir "$port"
  done 2>/dev/null
  for subsystem in "$NVMET/subsystems/$BASE:$1"-*; do
    [ ! -d "$subsystem/namespaces/1" ] || echo 0 >"$subsystem/namespaces/1/enable"
    rmdir "$subsystem/namespaces/1" "$subsystem"
  done 2>/dev/null
  for disk in "$CONFIG/nullb/$1"-*; do
    [ ! -d "$disk" ] || { echo 0 >"$disk/power"; rmdir "$disk"; }
  done 2>/dev/null
}

"$@"
