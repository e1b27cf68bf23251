//! copying
