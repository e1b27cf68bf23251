# LIO, Linux's own iSCSI target, by its configfs.
#   start OWN ADDRESS PORT COUNT BYTES OPTIONS   targets OWN-0 to OWN-COUNT, one ramdisk each
#   stop OWN COUNT                               takes away what start made
LIO=/sys/kernel/config/target
HBA=$LIO/core/rd_mcp_4242
BASE=iqn.2026-11.io.blockwire.eval

put() { printf %s "$1" >"$2" || { echo "$2 takes no $1" >&2; exit 1; }; }

start() {
  modprobe -a target_core_mod iscsi_target_mod || exit 1
  [ -d /sys/kernel/config/target ] || mount -t configfs configfs /sys/kernel/config || exit 1
  mkdir -p "$LIO/iscsi" || exit 1
  n=0
  while [ "$n" -lt "$4" ]; do
    store=$HBA/$1-$n group=$LIO/iscsi/$BASE:$1-$n/tpgt_1
    mkdir -p "$store" || exit 1
    # Its pages are those of the machine.
    put "rd_pages=$(($5 / $(getconf PAGESIZE 2>/dev/null || echo 4096)))$6" "$store/control"
    put "$1-$n" "$store/wwn/vpd_unit_serial"
    put 1 "$store/enable"
    mkdir -p "$group/lun/lun_0" "$group/np/$2:$3" || exit 1
    ln -s "$store" "$group/lun/lun_0/store" || exit 1
    put 1 "$group/attrib/generate_node_acls"
    put 0 "$group/attrib/demo_mode_write_protect"
    put 1 "$group/attrib/cache_dynamic_acls"
    put 0 "$group/attrib/authentication"
    put 1 "$group/enable"
    n=$((n + 1))
  done
}

stop() {
  n=0
  while [ "$n" -lt "$2" ]; do
    target=$LIO/iscsi/$BASE:$1-$n group=$LIO/iscsi/$BASE:$1-$n/tpgt_1
    [ ! -d "$group" ] || echo 0 >"$group/enable"
    rm -f "$group/lun/lun_0/store"
    rmdir "$group"/acls/* "$group/lun/lun_0" "$group"/np/* "$group" "$target" "$HBA/$1-$n"
    n=$((n + 1))
  done 2>/dev/null
  rmdir "$HBA" 2>/dev/null
}

"$@"
