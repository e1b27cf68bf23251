# nvmet, Linux's own NVMe/TCP target, by its configfs.
#   start OWN ADDRESS PORT COUNT MIB BACKED   subsystems OWN-0 to OWN-COUNT, one null_blk each, memory-backed or not
#   stop OWN COUNT PORT                       takes away what start made
CONFIG=/sys/kernel/config
NVMET=$CONFIG/nvmet
BASE=nqn.2026-11.io.blockwire

put() { printf %s "$1" >"$2" || { echo "$2 takes no $1" >&2; exit 1; }; }

start() {
  modprobe -a nvmet nvmet_tcp || exit 1
  modprobe null_blk nr_devices=0 || exit 1
  [ -d "$NVMET" ] || mount -t configfs configfs "$CONFIG" || exit 1
  port=$NVMET/ports/$3
  mkdir "$port" || exit 1
  put tcp "$port/addr_trtype"
  put ipv4 "$port/addr_adrfam"
  put "$2" "$port/addr_traddr"
  put "$3" "$port/addr_trsvcid"
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
    mkdir -p "$subsystem/namespaces/1" || exit 1
    put 1 "$subsystem/attr_allow_any_host"
    put "$device" "$subsystem/namespaces/1/device_path"
    put 1 "$subsystem/namespaces/1/enable"
    ln -s "$subsystem" "$port/subsystems/" || exit 1
    n=$((n + 1))
  done
}

stop() {
  n=0
  while [ "$n" -lt "$2" ]; do
    subsystem=$NVMET/subsystems/$BASE:$1-$n disk=$CONFIG/nullb/$1-$n
    rm -f "$NVMET/ports/$3/subsystems/$BASE:$1-$n"
    [ ! -d "$subsystem/namespaces/1" ] || echo 0 >"$subsystem/namespaces/1/enable"
    rmdir "$subsystem/namespaces/1" "$subsystem"
    [ ! -d "$disk" ] || echo 0 >"$disk/power"
    rmdir "$disk"
    n=$((n + 1))
  done 2>/dev/null
  rmdir "$NVMET/ports/$3" 2>/dev/null
}

"$@"
