//! Puts the interface's version into the name of the shared library, so that a program finds the version for
//! which it was built.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libblockwire.so.1");
}
