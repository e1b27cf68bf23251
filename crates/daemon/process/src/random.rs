//! Random bytes from the system.

use std::io;

use rustix::{
    io::Errno,
    rand::{GetRandomFlags, getrandom},
};

/// So many bytes that nobody can foretell.
///
/// # Errors
/// The system refuses them: says what to do.
pub fn random_bytes<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    fill_random(&mut bytes)?;
    Ok(bytes)
}

/// Fills memory with what nobody can foretell.
///
/// # Errors
/// The system refuses it: says what to do. What is in the memory then must not be used.
pub fn fill_random(bytes: &mut [u8]) -> io::Result<()> {
    fill_with(bytes, |rest| getrandom(rest, GetRandomFlags::empty()))
}

fn fill_with(
    mut bytes: &mut [u8],
    mut draw: impl FnMut(&mut [u8]) -> rustix::io::Result<usize>,
) -> io::Result<()> {
    while !bytes.is_empty() {
        match draw(bytes) {
            Ok(0) => return Err(random_error(Errno::IO)),
            Ok(filled) => bytes = bytes.get_mut(filled..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(why) => return Err(random_error(why)),
        }
    }
    Ok(())
}

fn random_error(why: Errno) -> io::Error {
    let text =
        "the system provides no random bytes; allow the system call getrandom (seccomp, SystemCallFilter=)";
    io::Error::new(why.kind(), format!("{text}: {}", io::Error::from(why)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_system_that_refuses_random_bytes_does_not_hang_us_and_is_named() {
        for errno in [Errno::NOSYS, Errno::PERM] {
            let why = fill_with(&mut [0; 4], |_| Err(errno)).unwrap_err();
            assert!(why.to_string().contains("allow the system call getrandom"), "{why}");
            assert_eq!(why.kind(), errno.kind());
        }
        assert!(fill_with(&mut [0; 4], |_| Ok(0)).is_err());
    }

    #[test]
    fn all_bytes_are_filled_however_few_come_at_once() {
        let (mut bytes, mut calls) = ([0; 4], 0);
        let one_by_one = |rest: &mut [u8]| {
            calls += 1;
            rest[0] = calls;
            if calls % 2 == 0 { Err(Errno::INTR) } else { Ok(1) }
        };
        fill_with(&mut bytes, one_by_one).unwrap();
        assert_eq!(bytes, [1, 3, 5, 7]);
        assert_ne!(super::random_bytes::<16>().unwrap(), super::random_bytes().unwrap());
    }
}
