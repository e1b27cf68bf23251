//! Tells hosts of changes that others made: events, and the logs behind them.

use std::collections::VecDeque;
use std::sync::Arc;

use nvme::Completion;
use nvme::log::ReservationNotice;
use volume::{NoticeCause, ViewUpdate, VolumeId};

use super::events::EventKind;
use super::{AdminWait, Controller, Controllers, ana};
use crate::context::ExecContext;
use crate::discovery::DiscoveryEntries;
use crate::server::Server;
use crate::step::Step;

/// How many reservation notices wait for a host; the log counts beyond, and the oldest go.
const NOTICES_MAX: usize = 255;

/// The reservation notification log of a controller (NVMe Base §5.16.1.24): a page shows the oldest
/// notice that was not read, and how many more there are.
///
/// A notice was read when its page was read from the start and without Retain (RAE). A reading with an
/// offset goes on in the page that was begun last, so that its pieces are of one notice, and takes
/// nothing out.
#[derive(Debug)]
pub(crate) struct Notices {
    /// Number, kind and namespace of each, oldest first.
    queue: VecDeque<(u64, ReservationNotice, u32)>,
    count: u64,
    /// The page as a host last began to read it.
    shown: [u8; PAGE],
}

impl Default for Notices {
    fn default() -> Self {
        Notices { queue: VecDeque::new(), count: 0, shown: EMPTY }
    }
}

/// Length of the page.
const PAGE: usize = 64;
/// The page when there is no notice: all zeroes.
const EMPTY: [u8; PAGE] = [0; PAGE];

impl Notices {
    fn push(&mut self, what: ReservationNotice, nsid: u32) {
        self.count += 1;
        if self.queue.len() == NOTICES_MAX {
            self.queue.pop_front();
        }
        self.queue.push_back((self.count, what, nsid));
    }

    /// The page, for a reading from `offset` on.
    pub(crate) fn page(&mut self, offset: u64, retain: bool) -> [u8; PAGE] {
        if offset > 0 {
            return self.shown;
        }
        self.shown = match self.queue.front() {
            Some(&(count, what, nsid)) => {
                let more = self.queue.len() - 1;
                nvme::log::reservation(count, what, more as u8, nsid)
            }
            None => EMPTY,
        };
        if !retain {
            self.queue.pop_front();
        }
        self.shown
    }

    /// Whether there is a notice that was not read.
    pub(crate) fn has_more(&self) -> bool {
        !self.queue.is_empty()
    }
}

/// What a volume's notice is to an NVMe host.
enum Told {
    Namespace,
    Reservation(ReservationNotice),
    Nothing,
}

fn told(cause: NoticeCause) -> Told {
    match cause {
        NoticeCause::RegistrationsPreempted => Told::Reservation(ReservationNotice::RegistrationPreempted),
        NoticeCause::ReservationsReleased => Told::Reservation(ReservationNotice::ReservationReleased),
        NoticeCause::ReservationsPreempted => Told::Reservation(ReservationNotice::ReservationPreempted),
        NoticeCause::CapacityChanged
        | NoticeCause::IdentityChanged
        | NoticeCause::InventoryChanged
        | NoticeCause::WriteProtectChanged
        | NoticeCause::MediumChanged => Told::Namespace,
        // Path states are looked at themselves. Sanitize is not offered over NVMe; the rest is SCSI's.
        NoticeCause::AccessChanged
        | NoticeCause::SanitizeDone
        | NoticeCause::SettingsChanged
        | NoticeCause::TasksCleared
        | NoticeCause::Reset => Told::Nothing,
    }
}

impl Controllers {
    /// A volume has changed, and its new view stands: the controllers of this shard tell their hosts.
    pub(crate) fn notify(&mut self, context: &mut ExecContext, volume: VolumeId, update: &ViewUpdate) {
        let numbers: Vec<u16> = self.iter().map(|controller| controller.spec.cntlid).collect();
        for cntlid in numbers {
            let Some(controller) = self.find_mut(cntlid) else { continue };
            let nsids: Vec<u32> = controller
                .namespaces
                .iter()
                .filter(|entry| entry.volume == volume)
                .map(|entry| entry.nsid)
                .collect();
            if nsids.is_empty() {
                continue;
            }
            let who = controller.spec.nexus.identity.clone();
            for notice in update.notices.iter().filter(|notice| notice.is_for(&who)) {
                match told(notice.cause) {
                    Told::Namespace => controller.note_namespaces(&nsids),
                    Told::Reservation(what) => controller.note_reservation(what, &nsids),
                    Told::Nothing => {}
                }
            }
            self.complete_event_requests(&mut context.steps, cntlid);
            self.follow_ana(context, cntlid);
        }
    }

    /// Namespaces of a controller have changed.
    pub(super) fn namespaces_changed(&mut self, steps: &mut VecDeque<Step>, cntlid: u16, nsids: &[u32]) {
        if let Some(controller) = self.find_mut(cntlid) {
            controller.note_namespaces(nsids);
        }
        self.complete_event_requests(steps, cntlid);
    }

    /// Looks whether the path states that a controller shows have changed.
    pub(super) fn follow_ana(&mut self, context: &mut ExecContext, cntlid: u16) {
        let Some(controller) = self.find(cntlid) else { return };
        let states = ana::groups_of(context, &controller.namespaces, controller.spec.nexus.port);
        let Some(controller) = self.find_mut(cntlid) else { return };
        if controller.ana.follow(states) {
            controller.events.raise(EventKind::Ana);
            self.complete_event_requests(&mut context.steps, cntlid);
        }
    }

    /// Answers Asynchronous Event Requests while there are events and requests.
    pub(crate) fn complete_event_requests(&mut self, steps: &mut VecDeque<Step>, cntlid: u16) {
        let Some(controller) = self.find_mut(cntlid) else { return };
        while let Some(at) =
            controller.waiting.iter().position(|waiting| matches!(waiting.on, AdminWait::Event))
        {
            let Some(event) = controller.events.next() else { return };
            let command = controller.waiting.remove(at).key;
            let completion = Completion { result: event.dword().into(), ..Completion::SUCCESS };
            steps.push_back(Step::Respond { command, reply: completion });
        }
    }
}

impl Server {
    /// What the host of a discovery controller can discover has changed: it is told if it sees another log.
    pub fn change_discovery(&mut self, cntlid: u16, entries: &Arc<DiscoveryEntries>) {
        let Some(controller) = self.controllers.find_mut(cntlid) else { return };
        let Some(discovery) = &mut controller.spec.discovery else { return };
        let host = &controller.spec.host.nqn;
        let same = discovery.entries.shows_the_same(entries, host, discovery.local);
        discovery.entries = entries.clone();
        if !same {
            controller.events.raise(EventKind::Discovery);
            self.controllers.complete_event_requests(&mut self.context.steps, cntlid);
        }
    }
}

impl Controller {
    fn note_namespaces(&mut self, nsids: &[u32]) {
        self.events.note_changed(nsids);
        self.events.raise(EventKind::Namespaces);
    }

    fn note_reservation(&mut self, what: ReservationNotice, nsids: &[u32]) {
        for &nsid in nsids {
            if !self.features.masks(nsid, what) {
                self.notices.push(what, nsid);
                self.events.raise(EventKind::Reservation);
            }
        }
    }
}
