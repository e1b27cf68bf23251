//! reservations
