//! Tells hosts of changes that others made: events, and the logs behind them.

use std::collections::VecDeque;

use nvme::Completion;
use nvme::log::ReservationNotice;
use volume::{NoticeCause, ViewUpdate, VolumeId};

use super::async_events::AsyncEventKind;
use super::{AdminWait, Controller, Controllers, ana};
use crate::context::ExecContext;
use crate::step::Step;

/// How many reservation notices wait for a host; the log counts beyond, and the oldest go.
pub(crate) const NOTICES_MAX: usize = 255;

/// The reservation notification log of a controller (NVMe Base §5.16.1.24): a page shows the oldest
/// notice that was not read, and how many more there are.
///
/// A notice was read when its page was read from the start and without Retain (RAE). A reading with an
/// offset goes on in the page that was begun last, so that its pieces are of one notice, and takes
/// nothing out.
#[derive(Debug)]
pub(crate) struct ReservationNoticeLog {
    /// Number, kind and namespace of each, oldest first.
    pub(crate) queue: VecDeque<(u64, ReservationNotice, u32)>,
    pub(crate) count: u64,
    /// The page as a host last began to read it.
    pub(crate) shown: [u8; PAGE_LEN],
}

impl Default for ReservationNoticeLog {
    fn default() -> Self {
        ReservationNoticeLog { queue: VecDeque::new(), count: 0, shown: EMPTY_PAGE }
    }
}

/// Length of the page.
pub(crate) const PAGE_LEN: usize = 64;
/// The page when there is no notice: all zeroes.
const EMPTY_PAGE: [u8; PAGE_LEN] = [0; PAGE_LEN];

impl ReservationNoticeLog {
    fn push(&mut self, what: ReservationNotice, nsid: u32) {
        self.count += 1;
        if self.queue.len() == NOTICES_MAX {
            self.queue.pop_front();
        }
        self.queue.push_back((self.count, what, nsid));
    }

    /// The page, for a reading from `offset` on.
    pub(crate) fn log_page(&mut self, offset: u64, retain: bool) -> [u8; PAGE_LEN] {
        if offset > 0 {
            return self.shown;
        }
        self.shown = match self.queue.front() {
            Some(&(count, what, nsid)) => {
                let more = self.queue.len() - 1;
                nvme::log::encode_reservation_notification(count, what, more as u8, nsid)
            }
            None => EMPTY_PAGE,
        };
        if !retain {
            self.queue.pop_front();
        }
        self.shown
    }

    /// Whether there is a notice that was not read.
    pub(crate) fn has_unread(&self) -> bool {
        !self.queue.is_empty()
    }
}

/// What a volume's notice is to an NVMe host.
enum HostNotice {
    Namespace,
    Reservation(ReservationNotice),
    Nothing,
}

fn host_notice(cause: NoticeCause) -> HostNotice {
    match cause {
        NoticeCause::RegistrationsPreempted => {
            HostNotice::Reservation(ReservationNotice::RegistrationPreempted)
        }
        NoticeCause::ReservationsReleased => HostNotice::Reservation(ReservationNotice::ReservationReleased),
        NoticeCause::ReservationsPreempted => {
            HostNotice::Reservation(ReservationNotice::ReservationPreempted)
        }
        NoticeCause::CapacityChanged
        | NoticeCause::IdentityChanged
        | NoticeCause::InventoryChanged
        | NoticeCause::WriteProtectChanged
        | NoticeCause::MediumChanged => HostNotice::Namespace,
        // Path states are looked at themselves. Sanitize is not offered over NVMe; the rest is SCSI's.
        NoticeCause::AccessChanged
        | NoticeCause::SanitizeDone
        | NoticeCause::SettingsChanged
        | NoticeCause::ThinThresholdReached
        | NoticeCause::TasksCleared
        | NoticeCause::Reset => HostNotice::Nothing,
    }
}

impl Controllers {
    /// A volume has changed, and its new view stands: the controllers of this shard tell their hosts.
    pub(crate) fn notify_hosts(&mut self, context: &mut ExecContext, volume: VolumeId, update: &ViewUpdate) {
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
                match host_notice(notice.cause) {
                    HostNotice::Namespace => controller.note_namespaces(&nsids),
                    HostNotice::Reservation(what) => controller.push_reservation_notice(what, &nsids),
                    HostNotice::Nothing => {}
                }
            }
            self.complete_event_requests(&mut context.steps, cntlid);
            self.refresh_ana_groups(context, cntlid);
        }
    }

    /// Namespaces of a controller have changed.
    pub(super) fn notify_namespaces_changed(
        &mut self,
        steps: &mut VecDeque<Step>,
        cntlid: u16,
        nsids: &[u32],
    ) {
        if let Some(controller) = self.find_mut(cntlid) {
            controller.note_namespaces(nsids);
        }
        self.complete_event_requests(steps, cntlid);
    }

    /// Looks whether the path states that a controller shows have changed.
    pub(crate) fn refresh_ana_groups(&mut self, context: &mut ExecContext, cntlid: u16) {
        let Some(controller) = self.find(cntlid) else { return };
        let states = ana::ana_groups(context, &controller.namespaces, controller.spec.nexus.port);
        let Some(controller) = self.find_mut(cntlid) else { return };
        if controller.ana.update(states) {
            controller.events.raise(AsyncEventKind::Ana);
            self.complete_event_requests(&mut context.steps, cntlid);
        }
    }

    /// Answers Asynchronous Event Requests while there are events and requests.
    pub(crate) fn complete_event_requests(&mut self, steps: &mut VecDeque<Step>, cntlid: u16) {
        let Some(controller) = self.find_mut(cntlid) else { return };
        while let Some(at) =
            controller.waiting.iter().position(|waiting| matches!(waiting.on, AdminWait::Event))
        {
            let Some(event) = controller.events.next_event() else { return };
            let command = controller.waiting.remove(at).key;
            let completion = Completion { result: event.to_dword().into(), ..Completion::SUCCESS };
            steps.push_back(Step::Respond { command, reply: completion });
        }
    }
}

impl Controller {
    fn note_namespaces(&mut self, nsids: &[u32]) {
        self.events.note_changed_namespaces(nsids);
        self.events.raise(AsyncEventKind::Namespaces);
    }

    fn push_reservation_notice(&mut self, what: ReservationNotice, nsids: &[u32]) {
        for &nsid in nsids {
            if !self.features.masks_notice(nsid, what) {
                self.notices.push(what, nsid);
                self.events.raise(AsyncEventKind::Reservation);
            }
        }
    }
}
