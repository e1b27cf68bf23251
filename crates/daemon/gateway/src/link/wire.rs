//! Values as bytes, and back. Integers are little-endian; a choice is one byte and what belongs to it; a list is
//! count(u32) and its entries; a text is length(u16) and UTF-8.
//!
//! Invariant: what is read is a value of its type or a refusal; no memory is taken for more than what has come.

use std::sync::Arc;
use std::time::Duration;

/// Not what a gateway of this version sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// The longest text: names of hosts have at most 223 bytes.
const TEXT_MAX: usize = 1024;

/// A value that is sent.
pub(crate) trait Wire: Sized {
    fn encode(&self, to: &mut Vec<u8>);
    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed>;
}

/// What is left of a frame.
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Reader(bytes)
    }

    pub(crate) fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (value, rest) = self.0.split_first_chunk::<N>().ok_or(Malformed)?;
        self.0 = rest;
        Ok(*value)
    }

    pub(crate) fn slice(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (value, rest) = self.0.split_at_checked(length).ok_or(Malformed)?;
        self.0 = rest;
        Ok(value)
    }

    /// Nothing may be left.
    pub(crate) fn close(self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed) }
    }
}

macro_rules! wire_integers {
    ($($of:ty),*) => {$(
        impl Wire for $of {
            fn encode(&self, to: &mut Vec<u8>) {
                to.extend_from_slice(&self.to_le_bytes());
            }

            fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
                from.take().map(<$of>::from_le_bytes)
            }
        }
    )*};
}

wire_integers!(u8, u16, u32, u64);

impl<const N: usize> Wire for [u8; N] {
    fn encode(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(self);
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        from.take()
    }
}

impl Wire for bool {
    fn encode(&self, to: &mut Vec<u8>) {
        to.push(u8::from(*self));
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        match u8::decode(from)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed),
        }
    }
}

impl Wire for () {
    fn encode(&self, _: &mut Vec<u8>) {}

    fn decode(_: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(())
    }
}

impl Wire for Duration {
    fn encode(&self, to: &mut Vec<u8>) {
        u64::try_from(self.as_nanos()).unwrap_or(u64::MAX).encode(to);
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        u64::decode(from).map(Duration::from_nanos)
    }
}

impl Wire for Arc<str> {
    fn encode(&self, to: &mut Vec<u8>) {
        // A longer one is refused by the other side, which ends the link: names are checked where they enter.
        u16::try_from(self.len()).unwrap_or(u16::MAX).encode(to);
        to.extend_from_slice(self.as_bytes());
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let length = usize::from(u16::decode(from)?);
        if length > TEXT_MAX {
            return Err(Malformed);
        }
        std::str::from_utf8(from.slice(length)?).map(Arc::from).map_err(|_| Malformed)
    }
}

impl<T: Wire> Wire for Option<T> {
    fn encode(&self, to: &mut Vec<u8>) {
        self.is_some().encode(to);
        if let Some(value) = self {
            value.encode(to);
        }
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        bool::decode(from)?.then(|| T::decode(from)).transpose()
    }
}

impl<T: Wire, E: Wire> Wire for Result<T, E> {
    fn encode(&self, to: &mut Vec<u8>) {
        self.is_ok().encode(to);
        match self {
            Ok(value) => value.encode(to),
            Err(error) => error.encode(to),
        }
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(if bool::decode(from)? { Ok(T::decode(from)?) } else { Err(E::decode(from)?) })
    }
}

impl<T: Wire> Wire for Arc<T> {
    fn encode(&self, to: &mut Vec<u8>) {
        T::encode(self, to);
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        T::decode(from).map(Arc::new)
    }
}

fn encode_list<T: Wire>(list: &[T], to: &mut Vec<u8>) {
    u32::try_from(list.len()).unwrap_or(u32::MAX).encode(to);
    list.iter().for_each(|entry| entry.encode(to));
}

impl<T: Wire> Wire for Vec<T> {
    fn encode(&self, to: &mut Vec<u8>) {
        encode_list(self, to);
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let count = u32::decode(from)?;
        let mut list = Vec::new();
        for _ in 0..count {
            // An entry has a byte at least, so the frame's length bounds the list.
            list.push(T::decode(from)?);
        }
        Ok(list)
    }
}

impl<T: Wire> Wire for Arc<[T]> {
    fn encode(&self, to: &mut Vec<u8>) {
        encode_list(self, to);
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Vec::decode(from).map(Arc::from)
    }
}
