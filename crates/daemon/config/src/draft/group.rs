//! `[group]`: the gateways that serve the same images.

use std::net::SocketAddr;

use super::super::{diagnostic::Located, reader::TableReader};
use crate::{name::VolumeName, network, plan::GroupSettings};

pub(super) fn read_group(table: &TableReader<'_>) -> Option<Located<GroupSettings>> {
    let name = table.require("name", table.parsed("name", str::parse));
    let pool = table.require("pool", table.parsed("pool", parse_pool));
    let parse = |text: &str| network::parse_address(text, network::GATEWAY_PORT);
    let listen = table.require("listen", table.parsed("listen", parse));
    let address = table.parsed("address", parse);
    let gateway = table.parsed("gateway", VolumeName::parse).map(|name| name.value);
    let conf = table.text("conf").map(|conf| table.file.directory.join(conf.value));
    let user = table.text("user").map(|user| user.value);
    let user = user.map(|user| user.strip_prefix("client.").map(str::to_owned).unwrap_or(user));
    let (name, pool, listen) = (name?, pool?, listen?);
    let address = reachable_address(table, &listen, address)?;
    let (pool, namespace) = pool.value;
    let group = GroupSettings {
        name: name.value,
        pool,
        namespace,
        conf,
        user,
        gateway,
        listen: listen.value,
        address,
    };
    Some(Located::new(group, table.place()))
}

/// `POOL` or `POOL/NAMESPACE`.
fn parse_pool(text: &str) -> Result<(String, Option<String>), String> {
    let is_name = |part: &str| {
        !part.is_empty() && !part.contains(|c: char| c == '@' || c.is_control() || c.is_whitespace())
    };
    let parts: Vec<&str> = text.split('/').collect();
    match parts[..] {
        [pool] if is_name(pool) => Ok((pool.to_owned(), None)),
        [pool, namespace] if is_name(pool) && is_name(namespace) => {
            Ok((pool.to_owned(), Some(namespace.to_owned())))
        }
        _ => Err(format!("\"{text}\" is not POOL or POOL/NAMESPACE")),
    }
}

/// Where others connect to: an address with a port, which they can dial.
fn reachable_address(
    table: &TableReader<'_>,
    listen: &Located<SocketAddr>,
    address: Option<Located<SocketAddr>>,
) -> Option<SocketAddr> {
    let (value, at) = match address {
        Some(address) => (address.value, address.at),
        None => (listen.value, listen.at.clone()),
    };
    if value.ip().is_unspecified() || value.port() == 0 {
        let why = format!(
            "other gateways cannot connect to {value}: give address in [group], as IP:PORT, where they reach this \
             gateway"
        );
        table.file.sink.note_error(&at, why);
        return None;
    }
    Some(value)
}
