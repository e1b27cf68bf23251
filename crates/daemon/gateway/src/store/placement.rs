//! Names of objects that fall into given placement groups: RADOS puts an object where the hash of its name says.
//!
//! The hash is Bob Jenkins' of 1996 (public domain), as Ceph's pools use it (`object_hash` 2); the number of placement
//! groups need not be a power of two. `tests/cluster.rs` compares with what a cluster says.

/// More names than this are not tried: at random, 65,536 groups take about 800,000.
const TRIES_MAX: u32 = 8_000_000;

/// More placement groups than this no pool has: clusters allow 65,536 (`mon_max_pool_pg_num`).
const GROUPS_MAX: u32 = 1 << 20;

/// The number that pools show which hash names so.
pub(crate) const OBJECT_HASH: u64 = 2;

/// One name of an object per placement group of a pool with `groups` of them, in their order; `None`: there are too many.
pub fn names(groups: u32, namespace: &str) -> Option<Vec<String>> {
    if groups > GROUPS_MAX {
        return None;
    }
    let mut names: Vec<Option<String>> = vec![None; usize::try_from(groups).ok()?];
    let mut left = names.len();
    for number in 0..TRIES_MAX {
        if left == 0 {
            break;
        }
        let name = format!("blockwire.spread.{number}");
        let at = usize::try_from(group_of(&name, namespace, groups)).ok()?;
        if let Some(place @ None) = names.get_mut(at) {
            *place = Some(name);
            left -= 1;
        }
    }
    names.into_iter().collect()
}

/// The placement group of an object, of `groups`.
pub(crate) fn group_of(name: &str, namespace: &str, groups: u32) -> u32 {
    let hash = if namespace.is_empty() {
        rjenkins(name.as_bytes())
    } else {
        rjenkins(format!("{namespace}\u{1f}{name}").as_bytes())
    };
    let mask = groups.checked_next_power_of_two().map_or(u32::MAX, |next| next - 1);
    if hash & mask < groups { hash & mask } else { hash & (mask >> 1) }
}

fn mix(mut a: u32, mut b: u32, mut c: u32) -> (u32, u32, u32) {
    a = a.wrapping_sub(b).wrapping_sub(c) ^ (c >> 13);
    b = b.wrapping_sub(c).wrapping_sub(a) ^ (a << 8);
    c = c.wrapping_sub(a).wrapping_sub(b) ^ (b >> 13);
    a = a.wrapping_sub(b).wrapping_sub(c) ^ (c >> 12);
    b = b.wrapping_sub(c).wrapping_sub(a) ^ (a << 16);
    c = c.wrapping_sub(a).wrapping_sub(b) ^ (b >> 5);
    a = a.wrapping_sub(b).wrapping_sub(c) ^ (c >> 3);
    b = b.wrapping_sub(c).wrapping_sub(a) ^ (a << 10);
    c = c.wrapping_sub(a).wrapping_sub(b) ^ (b >> 15);
    (a, b, c)
}

fn rjenkins(name: &[u8]) -> u32 {
    let (mut a, mut b, mut c) = (0x9e37_79b9_u32, 0x9e37_79b9_u32, 0_u32);
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0_u32, |word, byte| word << 8 | u32::from(*byte));
    let (blocks, tail) = name.as_chunks::<12>();
    for [a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3] in blocks {
        a = a.wrapping_add(u32::from_le_bytes([*a0, *a1, *a2, *a3]));
        b = b.wrapping_add(u32::from_le_bytes([*b0, *b1, *b2, *b3]));
        c = c.wrapping_add(u32::from_le_bytes([*c0, *c1, *c2, *c3]));
        (a, b, c) = mix(a, b, c);
    }
    // The last bytes; the lowest of `c` is for the length.
    let (first, rest) = tail.split_at(tail.len().min(4));
    let (second, third) = rest.split_at(rest.len().min(4));
    c = c.wrapping_add(name.len() as u32).wrapping_add(word(third) << 8);
    a = a.wrapping_add(word(first));
    b = b.wrapping_add(word(second));
    mix(a, b, c).2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_group_has_one_name() {
        for groups in [1, 2, 12, 16, 100, 256] {
            let names = names(groups, "").unwrap();
            for (at, name) in names.iter().enumerate() {
                assert_eq!(group_of(name, "", groups), at as u32);
            }
        }
        assert_ne!(names(16, "").unwrap(), names(16, "tenant").unwrap());
    }

    #[test]
    fn a_number_of_groups_that_no_pool_has_takes_no_memory() {
        assert_eq!(names(GROUPS_MAX + 1, ""), None);
        assert_eq!(names(u32::MAX, ""), None);
    }
}
