//! Which discovery services are announced by mDNS: those of the portals that the plan in force says.

use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};

use config::plan::{Plan, Protocol};
use control::report::ListenerReport;
use mdns::Announcer;
use process::log::area;

use super::{Daemon, VolumeRegistry};

/// What is announced. Nothing of mDNS runs until something is to be announced.
#[derive(Debug, Default)]
pub(super) struct Announcements(Mutex<Option<Announcer>>);

impl Announcements {
    /// Hosts that know an address need no announcement: what fails is a warning.
    fn replace(&self, services: &[SocketAddr]) {
        let mut announcer = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if announcer.is_none() && !services.is_empty() {
            let machine = rustix::system::uname().nodename().to_string_lossy().into_owned();
            match Announcer::new(&machine) {
                Ok(new) => *announcer = Some(new),
                Err(why) => return warn(&why),
            }
        }
        if let Some(announcer) = announcer.as_mut()
            && let Err(why) = announcer.announce(services)
        {
            warn(&why);
        }
        if services.is_empty() {
            // Its thread ends with it.
            *announcer = None;
        }
    }
}

fn warn(why: &str) {
    tracing::warn!(
        target: area::SERVE,
        why,
        "cannot announce discovery services by mDNS: hosts reach them by their addresses"
    );
}

/// Where the services are that are announced, with the ports that the system chose.
fn announced_services(plan: &Plan, listeners: &[ListenerReport]) -> Vec<SocketAddr> {
    let wanted = plan.portals.iter().filter(|portal| portal.announce && portal.protocol != Protocol::Iscsi);
    let bound = wanted.filter_map(|portal| {
        let is_bound_to = |listener: &&ListenerReport| {
            let port = portal.address.port();
            listener.protocol == portal.protocol.as_str()
                && listener.address.ip() == portal.address.ip()
                && (port == 0 || listener.address.port() == port)
        };
        listeners.iter().find(is_bound_to).map(|listener| listener.address)
    });
    bound.collect()
}

impl VolumeRegistry {
    /// Announces what the plan in force wants announced, and nothing else.
    pub(super) fn announce_services(&self) {
        self.announcements.replace(&announced_services(&self.plan(), &self.engine.listeners()));
    }
}

impl Daemon {
    /// Announces discovery services from now on, as the plan has it.
    pub fn announce_services(&self) {
        self.volumes.announce_services();
    }
}
