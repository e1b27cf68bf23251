//! START STOP UNIT and PREVENT ALLOW MEDIUM REMOVAL (SBC-3 §5.25, SPC-4 §6.14).
//!
//! There are no power conditions: those that are asked for are taken and change nothing, and a stop
//! without eject only makes stable what was written: behind the answer, with IMMED. All else ends at once or
//! by an answer of the volume's home, which is worth waiting for: it says whether removal is prevented.

use buf::Payload;
use scsi::cdb::StartStop;
use scsi::sense::Sense;
use volume::{Ask, Op, Why};

use super::block::admit;
use super::flush::start_background;
use super::good;
use crate::job::Job;
use crate::server::Server;

/// START STOP UNIT.
pub(crate) fn start_stop(server: &mut Server, slot: u32, what: StartStop) {
    let unit = server.unit_of(slot);
    let (removable, why) = (unit.spec.removable, unit.view.not_ready);
    if what.power_condition != 0 {
        return good(server, slot);
    }
    if what.load_eject && !removable {
        return server.check(slot, Sense::cdb_field(4, Some(1)));
    }
    let by = Some(server.nexus_of(slot).nexus.identity.clone());
    let read_only = server.tasks.get(slot).read_only;
    match (what.start, what.load_eject) {
        // Who may only read moves nothing; what is in may be loaded all the same.
        (true, true) if read_only && why != Some(Why::NoMedium) => good(server, slot),
        (true, true) => server.ask(slot, Ask::Load { by }),
        (true, false) if why.is_some() => server.ask(slot, Ask::Start),
        (true, false) => good(server, slot),
        (false, eject) => {
            let flushes = !what.no_flush && why.is_none() && admit(server, slot, &Op::Flush).is_ok();
            match (flushes, eject) {
                (true, false) if what.immediate && start_background(server, slot, &Op::Flush) => {
                    good(server, slot);
                }
                (true, _) => {
                    let job = if eject { Job::Eject } else { Job::Plain };
                    server.tasks.get_mut(slot).job = job;
                    server.submit(slot, Op::Flush, Payload::None, 0);
                }
                (false, true) => self::eject(server, slot),
                (false, false) => good(server, slot),
            }
        }
    }
}

/// Takes the medium out.
pub(crate) fn eject(server: &mut Server, slot: u32) {
    let by = Some(server.nexus_of(slot).nexus.identity.clone());
    server.ask(slot, Ask::Eject { by });
}

/// PREVENT ALLOW MEDIUM REMOVAL.
pub(crate) fn prevent(server: &mut Server, slot: u32, on: bool) {
    let by = server.nexus_of(slot).nexus.identity.clone();
    server.ask(slot, Ask::PreventRemoval { by, on });
}
