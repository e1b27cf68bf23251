# Sessions and controllers of Linux's initiators, told apart by who made them.
#   iscsi-held TARGET INTERFACE     prints sessions with a target that are not over our interface
#   iscsi-ours INTERFACE [TARGET]   prints sessions over it, or with nothing but INTERFACE its record, too
#   iscsi-undo INTERFACE            ends these sessions and forgets their nodes and the interface
#   nvme-held NQN HOST              prints controllers of a subsystem that are not our host's
#   nvme-ours HOST [NQN]            prints those of our host
#   nvme-undo HOST                  disconnects these
SYS=${SYS:-/sys}

is() { [ "$(cat "$1" 2>/dev/null)" = "$2" ]; }

case $1 in
iscsi-held)
  for session in "$SYS"/class/iscsi_session/session*; do
    if is "$session/targetname" "$2" && ! is "$session/ifacename" "$3"; then echo "${session##*/}"; fi
  done ;;
iscsi-ours)
  for session in "$SYS"/class/iscsi_session/session*; do
    is "$session/ifacename" "$2" || continue
    [ -z "$3" ] || is "$session/targetname" "$3" || continue
    echo "${session##*/}"
  done
  [ -n "$3" ] || iscsiadm -m iface 2>/dev/null | grep "^$2 " || : ;;
iscsi-undo)
  for session in "$SYS"/class/iscsi_session/session*; do
    ! is "$session/ifacename" "$2" || iscsiadm -m session -r "${session##*/session}" -u
  done
  iscsiadm -m node -I "$2" -o delete
  iscsiadm -m iface -I "$2" -o delete ;;
nvme-held)
  for controller in "$SYS"/class/nvme/nvme*; do
    if is "$controller/subsysnqn" "$2" && ! is "$controller/hostid" "$3"; then echo "${controller##*/}"; fi
  done ;;
nvme-ours)
  for controller in "$SYS"/class/nvme/nvme*; do
    is "$controller/hostid" "$2" || continue
    [ -z "$3" ] || is "$controller/subsysnqn" "$3" || continue
    echo "${controller##*/}"
  done ;;
nvme-undo)
  for controller in "$SYS"/class/nvme/nvme*; do
    ! is "$controller/hostid" "$2" || nvme disconnect -d "${controller##*/}"
  done ;;
esac
