//! What the memory of the data path costs: digests, copies, buffers. `cargo bench -p blockwire-buf`
//! prints nanoseconds and GB/s, the best of several rounds.
#![allow(missing_docs)]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use blockwire_buf::crc32c::{Crc32c, crc32c, path};
use blockwire_buf::{Class, Pool, Region, RegionHandle};

/// Nanoseconds per call of `each`, the best of nine rounds.
fn nanoseconds(mut each: impl FnMut()) -> f64 {
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

fn print(what: &str, bytes: usize, ns: f64) {
    println!("{what:24} {bytes:8} bytes {ns:10.1} ns {:7.1} GB/s", bytes as f64 / ns);
}

fn digests() {
    for len in [24, 48, 64, 96, 127, 128, 160, 192, 255, 256, 512, 4096, 8192, 65536, 1 << 20] {
        let (from, mut into) = (vec![7u8; len], vec![0u8; len]);
        print(
            "crc32c",
            len,
            nanoseconds(|| {
                black_box(crc32c(black_box(&from)));
            }),
        );
        print(
            "copy and crc32c",
            len,
            nanoseconds(|| {
                let mut crc = Crc32c::new();
                crc.copy(black_box(&from), black_box(&mut into));
                black_box(crc);
            }),
        );
        print(
            "copy, then crc32c",
            len,
            nanoseconds(|| {
                black_box(&mut into[..]).copy_from_slice(black_box(&from));
                black_box(crc32c(black_box(&into)));
            }),
        );
    }
}

fn regions() {
    let region = Region::new(256 << 20);
    (0..256).for_each(|n| region.write(n << 20, &vec![1; 1 << 20]));
    let handle = RegionHandle::new(Arc::new(region));
    for len in [512, 4096, 65536] {
        let (mut into, mut at) = (vec![0u8; len], 0);
        print(
            "region, scattered",
            len,
            nanoseconds(|| {
                at = (at + 77_777_408) % ((256 << 20) - len);
                handle.region().read(at & !511, black_box(&mut into));
            }),
        );
    }
}

fn pools() {
    let pool = Pool::new(64 << 20);
    for len in [512, 4096, 65536] {
        print("take, drop", len, nanoseconds(|| drop(black_box(pool.take(Class::Solicited, len)))));
        print(
            "take, freeze, drop",
            len,
            nanoseconds(|| drop(black_box(pool.take(Class::Wire, len).map(|b| b.freeze())))),
        );
        print(
            "take_sg, freeze, drop",
            len,
            nanoseconds(|| drop(black_box(pool.take_sg(Class::Wire, len).map(|b| b.freeze())))),
        );
    }
    let buf = pool.take(Class::Wire, 4096).expect("an empty pool has room").freeze();
    print("slice, drop", 48, nanoseconds(|| drop(black_box(buf.slice(1..49)))));
}

fn main() {
    println!("digests by {}", path());
    digests();
    regions();
    pools();
}
