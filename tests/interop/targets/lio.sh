# shellcheck shell=bash
# LIO, the iSCSI target of the Linux kernel, in a guest.

# shellcheck source=tests/guest/targets.sh
. "$ROOT/tests/guest/targets.sh"
# A target that it does not have it calls unavailable (0301h), which is no "not found" (0203h).
# shellcheck disable=SC2034
LINKS=2 ANNOUNCED=10.0.2.15:3260 NO_SUCH="refused the login" NO_SUCH_EXIT=1
# It closes when CHAP is not offered.
# shellcheck disable=SC2034
UNPROVED=1 UNPROVED_SAYS="closed the connection during the login"
# shellcheck disable=SC2034
EACH_HASH="5:md5 6:sha1 7:sha256 8:sha3-256"

# target_chap DIR USER SECRET [TARGET-USER TARGET-SECRET]
target_chap() {
  TARGETS_AUTH=("CHAP_USER=$2" "SECRET=$3")
  [ $# -lt 5 ] || TARGETS_AUTH+=("BACK_USER=$4" "BACK_SECRET=$5")
}

lun() { echo 0; }
url() { echo "iscsi://127.0.0.1:$PORT/$(iqn "$1")/$(lun)"; }
