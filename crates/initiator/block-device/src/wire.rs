//! Structures in the kernel's layout.

/// Declares a structure of the kernel's, with its size asserted.
macro_rules! wire {
    ($(#[$doc:meta])* $name:ident = $size:literal { $($field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub(super) struct $name { $(pub(super) $field: $type,)* }
        const _: () = assert!(size_of::<$name>() == $size);
    };
}
pub(crate) use wire;
