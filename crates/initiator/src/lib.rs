//! The initiator as a library: remote volumes, driven by the thread of whoever calls.

#![forbid(unsafe_code)]
