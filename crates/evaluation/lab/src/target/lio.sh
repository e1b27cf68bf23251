# LIO, Linux's own iSCSI target, by its configfs.
#   start OWN HBA PORTALS COUNT BYTES OPTIONS   targets OWN-0 to OWN-COUNT, one ramdisk each, at ADDRESS:PORT,...
#   stop OWN                                    takes away what start made
# Nobody else has a name that begins with OWN; what does not is not touched.
LIO=${CONFIG:-/sys/kernel/config}/target
BASE=iqn.2026-11.io.blockwire.eval

put() { printf %s "$1" >"$2" || { echo "$2 takes no $1" >&2; exit 1; }; }

start() {
  modprobe -a target_core_mod iscsi_target_mod || exit 1
  [ -d /sys/kernel/config/target ] || mount -t configfs configfs /sys/kernel/config || exit 1
  mkdir -p "$LIO/iscsi" || exit 1
  hba=$LIO/core/rd_mcp_$2
  mkdir "$hba" || exit 1
  n=0
  while [ "$n" -lt "$4" ]; do
    store=$hba/$1-$n group=$LIO/iscsi/$BASE:$1-$n/tpgt_1
    mkdir "$store" || exit 1
    # Its pages are those of the machine.
    put "rd_pages=$(($5 / $(getconf PAGESIZE 2>/dev/null || echo 4096)))$6" "$store/control"
    put "$1-$n" "$store/wwn/vpd_unit_serial"
    put 1 "$store/enable"
    mkdir -p "$group/lun/lun_0" || exit 1
    for portal in $(echo "$3" | tr , ' '); do mkdir "$group/np/$portal" || exit 1; done
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
  for target in "$LIO/iscsi/$BASE:$1"-*; do
    group=$target/tpgt_1
    [ ! -d "$group" ] || echo 0 >"$group/enable"
    rm -f "$group/lun/lun_0/store"
    rmdir "$group"/acls/* "$group/lun/lun_0" "$group"/np/* "$group" "$target"
  done 2>/dev/null
  for store in "$LIO"/core/rd_mcp_*/"$1"-*; do
    [ ! -d "$store" ] || { rmdir "$store" && rmdir "${store%/*}"; }
  done 2>/dev/null
}

"$@"
