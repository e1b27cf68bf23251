# Every target installs what it needs from Debian when run as root, and says what is missing otherwise.

.PHONY: help run test build lint unit interop sessions idle guest sim loom fuzz bench-iscsi bench-nvme deny install

# Where rustup puts cargo; a fresh shell may not know it yet.
export PATH := $(HOME)/.cargo/bin:$(PATH)

help:
	@echo "make run          build, serve two volumes, prove them with real clients, measure a little"
	@echo "make test         everything that must hold; also step by step:"
	@echo "make build lint unit interop sessions guest"
	@echo "make idle         what sessions at rest cost: memory of 2,000, processor time of 100 over 60 s"
	@echo "make bench-iscsi  the same load on Blockwire, the bare responder and tgt (BENCH=options)"
	@echo "make bench-nvme   the same over NVMe/TCP, and SPDK where it was built (tests/bench/spdk.sh, SPDK_DIR=)"
	@echo "make install      the release binary to \$$(DESTDIR)\$$(PREFIX)/bin (PREFIX=/usr/local)"
	@echo "make sim          SIM_SEEDS=$(SIM_SEEDS) histories in the simulated world; a failing one says how to replay it"
	@echo "make loom         every interleaving of the guards between writes, by the model checker loom"
	@echo "make fuzz         coverage-guided fuzzing, 60 s per target (needs a nightly toolchain and cargo-fuzz)"
	@echo "make deny         licences and advisories by cargo-deny, if it is installed"

run:
	@tests/run.sh

test:
	@tests/test.sh

build lint unit sessions guest:
	@tests/test.sh $@

interop:
	@tests/test.sh build libiscsi consumers guests

SIM_SEEDS ?= 5000
sim:
	@tests/setup.sh build
	SIM_SEEDS=$(SIM_SEEDS) cargo test --locked --release -p blockwire-target --test simulation histories -- --nocapture
	SIM_SEEDS=$(SIM_SEEDS) cargo test --locked --release -p blockwire-target --test one_truth histories -- --nocapture

# A build of its own: the flag would make everything else be built again.
loom:
	@tests/setup.sh build
	RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=$${CARGO_TARGET_DIR:-target}/loom \
		cargo test --locked --release -p blockwire-volume --lib guard

idle:
	@tests/test.sh build
	@for io in $${IO:-uring epoll}; do IO=$$io tests/sessions.sh 60 || exit 1; done

bench-iscsi:
	@tests/bench/bench-iscsi.sh $(BENCH)

bench-nvme:
	@SPDK_DIR="$(SPDK_DIR)" tests/bench/bench-nvme.sh $(BENCH)

fuzz:
	@tests/fuzz.sh

deny:
	@command -v cargo-deny >/dev/null || { echo "cargo-deny is missing: cargo install --locked cargo-deny (compiles for minutes)" >&2; exit 1; }
	@cargo deny check

PREFIX ?= /usr/local
install:
	@tests/setup.sh build
	cargo build --locked --release -p blockwire
	install -D -m 755 $${CARGO_TARGET_DIR:-target}/release/blockwire $(DESTDIR)$(PREFIX)/bin/blockwire
