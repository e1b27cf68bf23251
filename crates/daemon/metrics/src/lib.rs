//! What the daemon says over HTTP: metrics in the text format of Prometheus (0.0.4) and in OpenMetrics 1.0, and a live page.
//!
//! - [`exposition`]: the two text formats; nothing of the daemon.
//! - [`families`]: which metrics there are, from the reports of the control plane.
//! - [`request`]: what a client asks for, from its bytes.
//! - [`live`]: the page at `/`, and the numbers that it shows.
//! - [`server`]: the listener: GET and HEAD of `/metrics`, `/` and `/live.json`, nothing else.
//!
//! Invariants: nothing that a client sends changes the daemon or is kept longer than its connection. Connections, bytes
//! of a request and the time for each are bounded, and so is how often the shards are asked.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    warn(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::unreachable,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::string_slice
    )
)]

pub mod exposition;
pub mod families;
pub mod live;
pub mod request;
pub mod server;

pub use server::{MetricsListener, ObservationSource};
