//! What a start has from the process that it replaces, and gives to one that replaces it.

use std::{
    io,
    net::{SocketAddr, TcpListener},
    path::Path,
};

use crate::{daemon::ProcessParts, flight_files::FlightFiles, upgrade::Predecessor};
use control::{readers::ReaderGroup, server::ControlSocket};
use metrics::MetricsListener;
use process::exit::Failure;

/// The control socket: the one of the daemon that hands over, or a new one.
pub(super) fn open_control_socket(
    place: &Path,
    readers: Option<ReaderGroup>,
    predecessor: Option<&Predecessor>,
) -> Result<ControlSocket, Failure> {
    match predecessor.and_then(Predecessor::take_control_listener) {
        Some(listener) => ControlSocket::adopt(place, listener, readers),
        None => ControlSocket::bind(place, readers),
    }
}

/// Binds the address of metrics: an address that cannot be had ends the start.
pub(super) fn bind_http(
    address: SocketAddr,
    predecessor: Option<&Predecessor>,
) -> Result<MetricsListener, Failure> {
    let handed = predecessor.and_then(Predecessor::take_metrics_listener);
    let is_it = |socket: &TcpListener| {
        socket.local_addr().is_ok_and(|bound| {
            bound.ip() == address.ip() && (address.port() == 0 || address.port() == bound.port())
        })
    };
    match handed.filter(is_it) {
        Some(socket) => MetricsListener::adopt(socket),
        None => MetricsListener::bind(address),
    }
    .map_err(|why| Failure::failed(format!("cannot listen on {address} for metrics (http): {why}")))
}

/// What another process needs that is to take over.
pub(super) fn process_parts(
    socket: &ControlSocket,
    http: Option<&MetricsListener>,
    flight: &FlightFiles,
) -> io::Result<ProcessParts> {
    Ok(ProcessParts {
        control: socket.duplicate()?,
        gate: socket.gate(),
        metrics: http.map(MetricsListener::duplicate).transpose()?,
        flight: flight.clone(),
        arguments: std::env::args_os().skip(1).collect(),
    })
}
