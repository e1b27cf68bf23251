# Every target installs what it needs from Debian when run as root, and says what is missing otherwise.

.PHONY: help run test build lint unit cost shared-lines rdma interop sessions idle guest sim group-sim crash kill upgrade loom miri asan tsan fuzz mdns bench-iscsi bench-nvme bench-tls bench-host bench-generator bench-files eval eval-reports eval-look page snapshot ceph ceph-group group deny docs install install-files uninstall deb deb-test fio-engine

# Where rustup puts cargo; a fresh shell may not know it yet.
export PATH := $(HOME)/.cargo/bin:$(PATH)

help:
	@echo "make run          build, serve two volumes, test them with real clients, measure a short load"
	@echo "make test         everything that CI runs for each change; also step by step:"
	@echo "make build lint unit cost sessions guest"
	@echo "make cost         instructions per 4 KiB command against tests/cost.txt (needs valgrind)"
	@echo "make shared-lines checks that two shards write no common cache line per command (needs valgrind; minutes)"
	@echo "make rdma         latency over RDMA and TCP: nvmet, LIO and Blockwire in one emulated machine (RDMA=options)"
	@echo "make interop      more real clients, targets and guests than make test; takes an hour or more"
	@echo "make ceph         Ceph images as volumes, on a private test cluster from Debian's packages (CEPH_STORE=bluestore)"
	@echo "make group        daemons with [group] on a private Ceph cluster: forwards, reservations, drain, lost owners"
	@echo "make ceph-group   the store of a gateway group, and the group itself, on a private Ceph cluster"
	@echo "make idle         the cost of idle sessions: memory of 2,000, processor time of 100 over 60 s"
	@echo "make bench-iscsi  the same load on Blockwire, the bare responder and tgt (BENCH=options)"
	@echo "make bench-nvme   the same over NVMe/TCP, and SPDK where it was built (tests/bench/spdk.sh, SPDK_DIR=)"
	@echo "make bench-tls    our target and initiator over NVMe/TCP with TLS and without: MB/s, and processor time per I/O"
	@echo "make bench-host   our initiator, libiscsi's client, SPDK's where it was built, and the bare requester"
	@echo "make bench-generator  our load generator against fio on one device, and its CPU figures against pidstat"
	@echo "make bench-files  volumes on files against fio's io_uring on the same file, by processor time"
	@echo "make eval         the papers' experiments on this machine, with all installed systems; reports in docs/eval"
	@echo "make eval-reports makes HTML pages with charts from the records in docs/eval"
	@echo "make eval-look    tests a report in a browser: light, dark, phone, print; its charts have data (LOOK=record)"
	@echo "make page         tests the live page of a daemon under load in a browser: clicks, light, dark, phone"
	@echo "make snapshot     tests snapshots and clones on new XFS and btrfs file systems (needs root)"
	@echo "make fio-engine   builds an engine for the fio whose source tree is FIO=DIRECTORY; see docs/fio.md"
	@echo "make install      binary, C library, man pages, completions, systemd unit to \$$(DESTDIR)\$$(PREFIX) (/usr/local)"
	@echo "make uninstall    removes them; configuration and state stay"
	@echo "make deb          Debian packages: the program, the C library, its development files (target/deb)"
	@echo "make deb-test     lintian; installs, upgrades, removes and purges the packages in a separate Debian system"
	@echo "make sim          SIM_SEEDS=$(SIM_SEEDS) histories in the simulated world; a failing one says how to replay it"
	@echo "make group-sim    SEEDS=$(SEEDS) histories of a gateway group: takeovers, drains, lost links, stopped processes"
	@echo "make crash        at least 100,000 states that a power failure may leave, each with a daemon started on it"
	@echo "make kill         the daemon killed $(KILLS) times under verified load, and attachments' holders $(HOLDER_KILLS) times"
	@echo "make upgrade      the daemon replaced $(N) times in each world under verified load (SESSIONS=n, QUEUES=n)"
	@echo "make loom         every interleaving of the guards between writes, with the model checker loom"
	@echo "make miri         tests of buf, stream and volume under the interpreter Miri (needs a nightly toolchain)"
	@echo "make asan tsan    tests of code with shared memory under AddressSanitizer, ThreadSanitizer (need a nightly toolchain)"
	@echo "make fuzz         coverage-guided fuzzing, 60 s per target (needs a nightly toolchain and cargo-fuzz)"
	@echo "make mdns         NVMe discovery by mDNS between two network namespaces (needs root)"
	@echo "make docs         the documentation as a book, and rustdoc of the crates (needs mdBook)"
	@echo "make deny         licences and advisories by cargo-deny, if it is installed"

run:
	@tests/run.sh

test:
	@tests/test.sh

build lint unit cost sessions guest:
	@tests/test.sh $@

shared-lines:
	@tests/shared-lines.sh

rdma:
	@tests/test.sh build
	@tests/guest/rdma.sh $(RDMA)

interop:
	@tests/test.sh build libiscsi consumers initiators workloads experiments machines fio page snapshots guests

ceph:
	@tests/test.sh build
	@tests/interop/rbd.sh

ceph-group:
	@tests/setup.sh build
	@tests/interop/ceph-group.sh

group:
	@tests/test.sh build
	cargo build --locked --release -p blockwire-client --example increments
	@tests/interop/group.sh
	@[ "$$(id -u)" != 0 ] || tests/interop/group-cuts.sh

SIM_SEEDS ?= 5000
sim:
	@tests/setup.sh build
	SIM_SEEDS=$(SIM_SEEDS) cargo test --locked --release -p blockwire-shard --test simulation histories -- --nocapture
	SIM_SEEDS=$(SIM_SEEDS) cargo test --locked --release -p blockwire-shard --test cross_protocol histories -- --nocapture
	SIM_SEEDS=$(SIM_SEEDS) cargo test --locked --release -p blockwire-multipath --test simulation histories -- --nocapture
	SIM_SEEDS=$(SIM_SEEDS) cargo test --locked --release -p blockwire-multipath --test hostile sessions -- --nocapture
	SIM_SEEDS=$(SIM_SEEDS) cargo test --locked --release -p blockwire-multipath --lib random_histories -- --nocapture
	SIM_SEEDS=$(SIM_SEEDS) cargo test --locked --release -p blockwire-block-device --test hostile --test vhost sessions -- --nocapture
	SIM_SEEDS=$(SIM_SEEDS) cargo test --locked --release -p blockwire-block-device --lib seeds -- --nocapture

SEEDS ?= 5000
group-sim:
	@tests/setup.sh build
	SIM_SEEDS=$(SEEDS) cargo test --locked --release -p blockwire-group --lib histories -- --nocapture

# Every moment of so many histories is a crash point.
CRASH_SEEDS ?= 24
crash:
	@tests/setup.sh build crash
	cargo test --locked -p blockwire --test crash -- --nocapture
	CRASH_PERMILLE=1000 SIM_SEEDS=$(CRASH_SEEDS) cargo test --locked -p blockwire-shard --test cross_protocol crash_point -- --nocapture

KILLS ?= 1000
HOLDER_KILLS ?= 200
kill:
	@tests/setup.sh build attach crash
	KILLS=$(KILLS) HOLDER_KILLS=$(HOLDER_KILLS) cargo test --locked -p blockwire --test served -- --nocapture \
		killed:: however_often_the_holder

N ?= 1000
SESSIONS ?= 500
QUEUES ?= 500
upgrade:
	@tests/setup.sh build
	UPGRADES=$(N) SESSIONS=$(SESSIONS) QUEUES=$(QUEUES) \
		cargo test --locked -p blockwire --test served -- --nocapture upgrade::

# A build of its own: the flag would make everything else be built again.
loom:
	@tests/setup.sh build
	RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=$${CARGO_TARGET_DIR:-target}/loom \
		cargo test --locked --release -p blockwire-volume --lib guard

miri asan tsan:
	@tests/sanitize.sh $@

idle:
	@tests/test.sh build
	@for io in $${IO:-uring epoll}; do IO=$$io tests/sessions.sh 60 || exit 1; done

eval-reports:
	@tests/release.sh
	@for run in docs/eval/*/; do $${CARGO_TARGET_DIR:-target}/release/blockwire eval report "$$run" || exit 1; done

eval-look:
	@tests/eval-look.sh $(LOOK)

snapshot:
	@tests/snapshot.sh

page:
	@tests/test.sh build
	@tests/page.sh

eval:
	@SPDK_DIR="$(SPDK_DIR)" tests/eval.sh auto $(EVAL)

bench-iscsi:
	@tests/bench/bench-iscsi.sh $(BENCH)

bench-nvme:
	@SPDK_DIR="$(SPDK_DIR)" tests/bench/bench-nvme.sh $(BENCH)

bench-tls:
	@tests/bench/bench-tls.sh $(BENCH)

bench-host:
	@SPDK_DIR="$(SPDK_DIR)" tests/bench/bench-host.sh $(BENCH)

bench-generator:
	@tests/bench/generator.sh $(BENCH)

mdns:
	@tests/mdns.sh

bench-files:
	@tests/bench/files.sh $(BENCH)

fuzz:
	@tests/fuzz.sh

docs:
	@tests/docs.sh

deny:
	@command -v cargo-deny >/dev/null || { echo "cargo-deny is missing: cargo install --locked cargo-deny (compiles for minutes)" >&2; exit 1; }
	@cargo deny check

# An engine for the fio whose source tree FIO names; see docs/fio.md. It holds the library.
FIO_CFLAGS = -O2 -std=gnu11 -Wall -Wextra -Wno-sign-compare -Wno-unused-parameter -D_GNU_SOURCE
fio-engine:
	@tests/setup.sh build
	@test -n "$(FIO)" || { echo "FIO= is missing: the source tree of the fio that shall load the engine" >&2; exit 2; }
	@test -e "$(FIO)/ioengines.h" || { echo "$(FIO) is no source tree of fio: there is no ioengines.h" >&2; exit 2; }
	@test -e "$(FIO)/config-host.h" || { echo "$(FIO) is not configured: run ./configure there" >&2; exit 2; }
	cargo build --locked --release -p blockwire-capi
	mkdir -p $(dir $(RELEASE))fio
	$(CC) $(FIO_CFLAGS) -include $(FIO)/config-host.h -I$(FIO) -Icrates/initiator/capi/include -shared -fPIC \
		contrib/fio/blockwire.c -o $(dir $(RELEASE))fio/blockwire.so \
		-L$(dir $(RELEASE)) -Wl,-Bstatic -lblockwire -Wl,-Bdynamic \
		$$(sed -n 's/^Libs.private: //p' crates/initiator/capi/blockwire.pc.in)

PREFIX ?= /usr/local
RELEASE = $${CARGO_TARGET_DIR:-target}/release/blockwire
BIN = $(DESTDIR)$(PREFIX)/bin
MAN = $(DESTDIR)$(PREFIX)/share/man/man1
MAN5 = $(DESTDIR)$(PREFIX)/share/man/man5
BASH_COMPLETION = $(DESTDIR)$(PREFIX)/share/bash-completion/completions/blockwire
ZSH_COMPLETION = $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_blockwire
FISH_COMPLETION = $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/blockwire.fish
UNIT = $(DESTDIR)$(PREFIX)/lib/systemd/system/blockwire.service
UNIT_CONNECT = $(DESTDIR)$(PREFIX)/lib/systemd/system/blockwire-connect-all.service
SYSUSERS = $(DESTDIR)$(PREFIX)/lib/sysusers.d/blockwire.conf
LIB = $(DESTDIR)$(PREFIX)/lib
HEADER = $(DESTDIR)$(PREFIX)/include/blockwire.h
PKGCONFIG = $(LIB)/pkgconfig/blockwire.pc

# The man pages and completions come from the binary itself; the unit names the binary where it was put.
install:
	@tests/setup.sh build
	tests/release.sh
	@$(MAKE) --no-print-directory install-files

# The same of what is built already; RELEASE names the binary, and the library lies beside it.
install-files:
	install -D -m 755 $(RELEASE) $(BIN)/blockwire
	install -d $(MAN) $(dir $(BASH_COMPLETION) $(ZSH_COMPLETION) $(FISH_COMPLETION) $(UNIT))
	$(RELEASE) man $(MAN)
	install -d $(MAN5)
	mv $(MAN)/blockwire.toml.5 $(MAN5)/
	chmod 644 $(MAN)/blockwire*.1 $(MAN5)/blockwire.toml.5
	$(RELEASE) completions bash >$(BASH_COMPLETION)
	$(RELEASE) completions zsh >$(ZSH_COMPLETION)
	$(RELEASE) completions fish >$(FISH_COMPLETION)
	sed 's|/usr/bin/blockwire|$(PREFIX)/bin/blockwire|' packaging/systemd/blockwire.service >$(UNIT)
	sed 's|/usr/bin/blockwire|$(PREFIX)/bin/blockwire|' packaging/systemd/blockwire-connect-all.service >$(UNIT_CONNECT)
	chmod 644 $(BASH_COMPLETION) $(ZSH_COMPLETION) $(FISH_COMPLETION) $(UNIT) $(UNIT_CONNECT)
	install -D -m 644 packaging/sysusers.d/blockwire.conf $(SYSUSERS)
	install -D -m 644 $(dir $(RELEASE))libblockwire.so $(LIB)/libblockwire.so.1
	ln -sf libblockwire.so.1 $(LIB)/libblockwire.so
	install -m 644 $(dir $(RELEASE))libblockwire.a $(LIB)/libblockwire.a
	install -D -m 644 crates/initiator/capi/include/blockwire.h $(HEADER)
	install -d $(dir $(PKGCONFIG))
	sed 's|@PREFIX@|$(PREFIX)|;s|@VERSION@|'"$$($(RELEASE) --version | cut -d' ' -f2)"'|' crates/initiator/capi/blockwire.pc.in >$(PKGCONFIG)
	chmod 644 $(PKGCONFIG)

deb:
	@packaging/deb/build.sh

deb-test:
	@tests/deb.sh

# Configuration, state and the user stay.
uninstall:
	rm -f $(BIN)/blockwire $(MAN)/blockwire.1 $(MAN)/blockwire-*.1 $(MAN5)/blockwire.toml.5
	rm -f $(BASH_COMPLETION) $(ZSH_COMPLETION) $(FISH_COMPLETION) $(UNIT) $(UNIT_CONNECT) $(SYSUSERS)
	rm -f $(LIB)/libblockwire.so $(LIB)/libblockwire.so.1 $(LIB)/libblockwire.a $(HEADER) $(PKGCONFIG)
