#!/usr/bin/env bash
# A Ceph cluster for tests, from Debian's packages, without cephadm: one monitor, one manager and OSDs, on loopback unless told otherwise,
# all of it in one private directory.
#   ceph.sh start [DIR]    starts it; done when it takes I/O. CEPH_OSDS=3, CEPH_STORE=memstore (or bluestore),
#                          CEPH_ADDRESS=127.0.0.1
#   ceph.sh stop [DIR]     ends its processes and removes the directory
#   ceph.sh pause [DIR]    the cluster is away: SIGSTOP to all of its processes
#   ceph.sh resume [DIR]   it is there again
#   ceph.sh env [DIR]      prints what a shell needs: CEPH_CONF and CEPH_KEYRING
# DIR is $OUT/ceph unless it is given. The pool is `rbd`; `client.admin` may do everything.
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
trap - EXIT
VERB=${1:?start, stop, pause, resume or env} DIR=${2:-$OUT/ceph}
CONF=$DIR/ceph.conf

# each_pid COMMAND...: for each process of the cluster that is still the one that was started
each_pid() {
  local pid began_then
  [ -e "$DIR/pids" ] || return 0
  while read -r pid began_then; do
    [ "$(began "$pid")" != "$began_then" ] || "$@" "$pid" || true
  done <"$DIR/pids"
}

# daemon NAME COMMAND...: starts a process of the cluster
daemon() {
  local name=$1; shift
  setsid "$@" >"$DIR/$name.out" 2>&1 </dev/null &
  echo "$! $(began $!)" >>"$DIR/pids"
}

c() { ceph -c "$CONF" --connect-timeout 20 "$@"; }

start() {
  local address=${CEPH_ADDRESS:-127.0.0.1}
  local port osds=${CEPH_OSDS:-3} store=${CEPH_STORE:-memstore} fsid n t0 uuid key
  t0=$(now)
  "$ROOT/tests/setup.sh" ceph
  [ ! -e "$DIR" ] || fail "$DIR is there: end it first with ceph.sh stop"
  mkdir -p "$DIR"/{mon,mgr,run}
  port=$(free_port) fsid=$(cat /proc/sys/kernel/random/uuid)
  cat >"$CONF" <<END
[global]
fsid = $fsid
mon_host = v2:$address:$port
mon_initial_members = a
public_addr = $address
auth_cluster_required = cephx
auth_service_required = cephx
auth_client_required = cephx
keyring = $DIR/keyring
run_dir = $DIR/run
admin_socket = $DIR/run/\$cluster-\$name.\$pid.asok
log_file = $DIR/\$name.log
mon_cluster_log_file = $DIR/cluster.log
log_to_stderr = false
pid_file =
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 16
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
mon_allow_pool_size_one = true
mon_warn_on_pool_no_redundancy = false
mon_data_avail_warn = 1
mon_data_avail_crit = 1
osd_objectstore = $store
memstore_device_bytes = 2147483648
bluestore_block_size = 2147483648
osd_max_object_name_len = 256
osd_max_object_namespace_len = 64
[mon]
mon_data = $DIR/mon
[mgr]
mgr_data = $DIR/mgr
mgr_initial_modules =
[osd]
osd_data = $DIR/osd\$id
[client]
log_file =
admin_socket =
END
  quietly ceph-keyring ceph-authtool --create-keyring "$DIR/keyring" --gen-key -n mon. --cap mon 'allow *'
  quietly ceph-keyring ceph-authtool "$DIR/keyring" --gen-key -n client.admin \
    --cap mon 'allow *' --cap osd 'allow *' --cap mgr 'allow *'
  quietly ceph-keyring ceph-authtool "$DIR/keyring" --gen-key -n mgr.x \
    --cap mon 'allow profile mgr' --cap osd 'allow *'
  quietly ceph-monmap monmaptool --create --clobber --fsid "$fsid" --addv a "[v2:$address:$port]" "$DIR/monmap"
  quietly ceph-mkfs ceph-mon -c "$CONF" -i a --mkfs --monmap "$DIR/monmap" --keyring "$DIR/keyring"
  daemon mon ceph-mon -c "$CONF" -i a -f
  wait_until 20 c -s || fail "the monitor does not start: $DIR/mon.a.log"
  daemon mgr ceph-mgr -c "$CONF" -i x -f
  for ((n = 0; n < osds; n++)); do
    uuid=$(cat /proc/sys/kernel/random/uuid) key=$(ceph-authtool --gen-print-key)
    mkdir -p "$DIR/osd$n"
    printf '[osd.%s]\n\tkey = %s\n' "$n" "$key" >>"$DIR/keyring"
    # Makes the OSD known together with its key.
    printf '{"cephx_secret": "%s"}' "$key" | c osd new "$uuid" -i - >/dev/null
    quietly "ceph-osd$n" ceph-osd -c "$CONF" -i "$n" --mkfs --osd-uuid "$uuid"
    daemon "osd$n" ceph-osd -c "$CONF" -i "$n" -f
  done
  all_up() { c osd stat -f json | grep -q "\"num_up_osds\":$osds,"; }
  wait_until 30 all_up || fail "the OSDs do not start: $DIR/osd.0.log"
  quietly ceph-pool c osd pool create rbd 16
  quietly ceph-pool timeout 30 rbd -c "$CONF" pool init rbd
  say "ceph: $osds OSDs ($store), started in $(since "$t0") s; CEPH_CONF=$CONF"
}

case $VERB in
start) start ;;
stop)
  each_pid kill -CONT
  each_pid kill -9
  [ ! -e "$DIR/ceph.conf" ] || gone "$DIR"
  ;;
pause) each_pid kill -STOP ;;
resume) each_pid kill -CONT ;;
env) printf 'export CEPH_CONF=%q CEPH_KEYRING=%q\n' "$CONF" "$DIR/keyring" ;;
*) fail "start, stop, pause, resume or env, not $VERB" ;;
esac
