//! What the memory of the data path costs: digests, copies, buffers. `cargo bench -p blockwire-buf`
//! prints nanoseconds and GB/s, the best of several rounds.
#![allow(missing_docs)]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use blockwire_buf::crc32c::{Crc32c, crc32c, implementation_name};
use blockwire_buf::{MemoryClass, Pool, Region, RegionHandle};

/// Nanoseconds per call of `each`, the best of nine rounds.
fn ns_per_call(mut each: impl FnMut()) -> f64 {
    let round = |each: &mut dyn FnMut(), calls: u32| {
        let start = Instant::now();
        (0..calls).for_each(|_| each());
        start.elapsed().as_nanos() as f64 / f64::from(calls)
    };
    let first = round(&mut each, 100);
    let calls = (3e7 / first.max(1.0)) as u32 + 1;
    // The call by pointer costs about a nanosecond, the same for all.
    (0..9).map(|_| round(&mut each, calls)).fold(f64::MAX, f64::min)
}

fn print_result(what: &str, bytes: usize, ns: f64) {
    println!("{what:24} {bytes:8} bytes {ns:10.1} ns {:7.1} GB/s", bytes as f64 / ns);
}

fn bench_digests() {
    for len in [24, 48, 64, 96, 127, 128, 160, 192, 255, 256, 512, 4096, 8192, 65536, 1 << 20] {
        let (from, mut into) = (vec![7u8; len], vec![0u8; len]);
        print_result(
            "crc32c",
            len,
            ns_per_call(|| {
                black_box(crc32c(black_box(&from)));
            }),
        );
        print_result(
            "copy and crc32c",
            len,
            ns_per_call(|| {
                let mut crc = Crc32c::new();
                crc.copy_and_update(black_box(&from), black_box(&mut into));
                black_box(crc);
            }),
        );
        print_result(
            "copy, then crc32c",
            len,
            ns_per_call(|| {
                black_box(&mut into[..]).copy_from_slice(black_box(&from));
                black_box(crc32c(black_box(&into)));
            }),
        );
    }
}

fn bench_regions() {
    let region = Region::new(256 << 20);
    (0..256).for_each(|n| region.write(n << 20, &vec![1; 1 << 20]));
    let handle = RegionHandle::new(Arc::new(region));
    for len in [512, 4096, 65536] {
        let (mut into, mut at) = (vec![0u8; len], 0);
        print_result(
            "region, scattered",
            len,
            ns_per_call(|| {
                at = (at + 77_777_408) % ((256 << 20) - len);
                handle.region().read(at & !511, black_box(&mut into));
            }),
        );
    }
}

fn bench_pools() {
    let pool = Pool::new(64 << 20);
    for len in [512, 4096, 65536] {
        print_result(
            "take, drop",
            len,
            ns_per_call(|| drop(black_box(pool.take(MemoryClass::Solicited, len)))),
        );
        print_result(
            "take, freeze, drop",
            len,
            ns_per_call(|| drop(black_box(pool.take(MemoryClass::Wire, len).map(|b| b.freeze())))),
        );
        print_result(
            "take_sg, freeze, drop",
            len,
            ns_per_call(|| drop(black_box(pool.take_sg(MemoryClass::Wire, len).map(|b| b.freeze())))),
        );
    }
    let buf = pool.take(MemoryClass::Wire, 4096).expect("an empty pool has room").freeze();
    print_result("slice, drop", 48, ns_per_call(|| drop(black_box(buf.slice(1..49)))));
}

fn main() {
    println!("digests by {}", implementation_name());
    bench_digests();
    bench_regions();
    bench_pools();
}
