# A machine as ssh reaches it, for tests: DIR, then ssh's own words. Sessions and controllers are directories.
dir=$1
for words; do :; done
mkdir -p "$dir/bin" "$dir/sys/class/iscsi_session" "$dir/sys/class/nvme" "$dir/node" "$dir/iface"
cat >"$dir/bin/iscsiadm" <<'END'
#!/bin/sh
echo "$*" >>"$DIR/said"
mode='' target='' name='' op='' in='' out='' session=''
while [ $# -gt 0 ]; do
  case $1 in
  -m) mode=$2; shift ;; -T) target=$2; shift ;; -I) name=$2; shift ;; -o) op=$2; shift ;; -r) session=$2; shift ;;
  --login) in=1 ;; -u) out=1 ;; -p | -n | -v | -P) shift ;;
  esac
  shift
done
case $mode:$op$in$out in
iface:new) echo "tcp" >"$DIR/iface/$name" ;;
iface:delete) rm "$DIR/iface/$name" ;;
iface:) for one in "$DIR"/iface/*; do echo "${one##*/} tcp"; done ;;
node:new) echo manual >"$DIR/node/$target,$name" ;;
node:delete) rm "$DIR"/node/*,"$name" ;;
node:1)
  mkdir "$SYS/class/iscsi_session/session$$" && cd "$SYS/class/iscsi_session/session$$" || exit 1
  echo "$target" >targetname; echo "$name" >ifacename ;;
session:1) rm -r "$SYS/class/iscsi_session/session$session" ;;
session:)
  for one in "$SYS"/class/iscsi_session/session*; do
    echo "Target: $(cat "$one/targetname") (non-flash)"; echo "Iface Name: $(cat "$one/ifacename")"
    echo "scsi1 Channel 00 Id 0 Lun: 0"; echo "Attached scsi disk sda State: running"
  done ;;
esac
END
cat >"$dir/bin/nvme" <<'END'
#!/bin/sh
echo "$*" >>"$DIR/said"
verb=$1 host='' nqn='' device=''
while [ $# -gt 0 ]; do
  case $1 in -n) nqn=$2; shift ;; -I) host=$2; shift ;; -d) device=$2; shift ;; esac
  shift
done
case $verb in
connect)
  mkdir "$SYS/class/nvme/nvme$$" && cd "$SYS/class/nvme/nvme$$" || exit 1
  echo "$nqn" >subsysnqn; echo "$host" >hostid ;;
disconnect) rm -r "$SYS/class/nvme/$device" ;;
esac
END
printf '#!/bin/sh\n' >"$dir/bin/modprobe"
chmod 755 "$dir"/bin/*
DIR=$dir SYS=$dir/sys PATH=$dir/bin:$PATH exec sh -c "$words"
