//! Names the shared library by the version of its interface, so that a program finds the one it was built for.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libblockwire.so.1");
}
