//! The plan's cores, listeners and memory, in the form for the reactor.

use std::time::Duration;

use reactor::{Config, IoChoice, ListenConfig, TcpKeepAlive};

use crate::descriptors;
use config::plan::{IoEngine, Plan, Portal, TcpOptions};

/// Seconds between keep-alive probes, and how many may stay unanswered: a dead peer is noticed
/// half a minute after the idle time.
const KEEP_ALIVE_INTERVAL_S: u16 = 10;
const KEEP_ALIVE_PROBES: u8 = 3;

/// The reactor's configuration. Listeners stand in the order of the plan's portals.
pub fn reactor_config(plan: &Plan) -> Config {
    let cores = if plan.cores.is_empty() { allowed_cores() } else { plan.cores.clone() };
    Config {
        closing_max: 4 * descriptors::pending_logins_max(cores.len()),
        on_exhausted: Some(descriptors::log_exhausted),
        cores,
        io: match plan.io {
            IoEngine::Auto => IoChoice::Auto,
            IoEngine::Uring => IoChoice::Uring,
            IoEngine::Epoll => IoChoice::Epoll,
        },
        pool_bytes: usize::try_from(plan.limits.memory).unwrap_or(usize::MAX),
        listeners: plan.portals.iter().map(listen_options).collect(),
        ..Config::default()
    }
}

/// How many shards a plan has.
pub fn shard_count(plan: &Plan) -> u16 {
    let cores = if plan.cores.is_empty() { allowed_cores().len() } else { plan.cores.len() };
    cores.max(1) as u16
}

/// The cores that the process may use; none if the system does not say, then one shard roams.
fn allowed_cores() -> Vec<usize> {
    let Ok(set) = rustix::thread::sched_getaffinity(None) else { return Vec::new() };
    (0..rustix::thread::CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect()
}

pub(super) fn listen_options(portal: &Portal) -> ListenConfig {
    let TcpOptions { congestion, send_buffer, receive_buffer, dscp, keepalive } = &portal.tcp;
    let tcp = reactor::TcpOptions {
        congestion: congestion.clone(),
        send_buffer: *send_buffer,
        recv_buffer: *receive_buffer,
        dscp: *dscp,
        keep_alive: keepalive.and_then(keep_alive_options),
    };
    ListenConfig { address: portal.address, tcp }
}

/// Zero means off, which is what the system does unless asked.
fn keep_alive_options(idle: Duration) -> Option<TcpKeepAlive> {
    let idle_s = u16::try_from(idle.as_secs()).ok().filter(|seconds| *seconds > 0)?;
    Some(TcpKeepAlive { idle_s, interval_s: KEEP_ALIVE_INTERVAL_S, count: KEEP_ALIVE_PROBES })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::example::example_plan;

    #[test]
    fn portals_become_listeners_in_order() {
        let mut plan = example_plan();
        let made = reactor_config(&plan);
        let addresses: Vec<String> = made.listeners.iter().map(|listen| listen.address.to_string()).collect();
        assert_eq!(
            addresses,
            ["192.0.2.10:3260", "[2001:db8::10]:3260", "127.0.0.1:3261", "127.0.0.1:4420", "127.0.0.1:8009"]
        );
        let tcp = &made.listeners[0].tcp;
        assert_eq!((tcp.congestion.as_deref(), tcp.dscp), (Some("bbr"), Some(34)));
        assert_eq!(tcp.keep_alive.map(|probes| probes.idle_s), Some(60));
        assert!(!made.cores.is_empty(), "the cores that this test may use");
        assert_eq!(made.pool_bytes, 128 << 20);
        plan.cores = vec![3];
        plan.io = IoEngine::Epoll;
        plan.portals[0].tcp.keepalive = Some(Duration::ZERO);
        let made = reactor_config(&plan);
        assert_eq!((made.cores, made.io), (vec![3], IoChoice::Epoll));
        assert_eq!(made.listeners[0].tcp.keep_alive, None);
    }
}
