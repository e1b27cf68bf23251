# Prints the disk of an NVMe namespace: NQN NSID
for disk in /sys/block/nvme*n*; do
  name=${disk##*/}
  [ -b "/dev/$name" ] || continue
  nqn=$(cat "$disk/device/subsysnqn" 2>/dev/null || cat "$disk"/device/nvme*/subsysnqn 2>/dev/null | head -n 1)
  nsid=$(cat "$disk/nsid" 2>/dev/null || echo "${name##*n}")
  if [ "$nqn" = "$1" ] && [ "$nsid" = "$2" ]; then echo "/dev/$name"; fi
done
