//! Format NVM (NVMe Base §5.14; NVM command set §4.1.2): there is one format, without metadata or protection information,
//! so what it does is that all blocks are zero afterwards, whether an erase is asked for (SES 1) or not.
//!
//! The composition carries it out, and it goes on when its host is gone.

use buf::Cx;
use nvme::Status;
use nvme::admin::FormatNvm;
use nvme::identify::NSID_ALL;
use volume::{Op, Refusal, Requester, SanitizeKind};

use super::{AdminOutcome, answer_unless_later, take_waiting};
use crate::controller::{AdminWait, Unanswered, WaitingCommand};
use crate::server::Server;
use crate::status;
use crate::step::{CommandKey, ControllerStep, FormatFailure, Step};

/// The command has come.
pub(super) fn start_format(
    server: &mut Server,
    cntlid: u16,
    (key, cid): (CommandKey, u16),
    format: FormatNvm,
) -> Result<AdminOutcome, Status> {
    let controller = server.controllers.find(cntlid).ok_or(Status::INTERNAL_ERROR)?;
    // FNA bit 3: it is for one namespace.
    if format.nsid == NSID_ALL {
        return Err(Status::INVALID_FIELD.with_do_not_retry());
    }
    let (entry, volume) = super::identify::require_namespace(server, controller, format.nsid)?;
    if format.lba_format != 0 || format.metadata_in_line || format.protection != 0 {
        return Err(Status::INVALID_FORMAT.with_do_not_retry());
    }
    // 2 destroys a key, and there is none.
    if format.secure_erase > 1 {
        return Err(Status::INVALID_FIELD.with_do_not_retry());
    }
    let nexus = &controller.spec.nexus;
    let who = Requester { read_only: nexus.read_only || entry.read_only, ..nexus.clone() };
    volume.view.admit(&who, &Op::Sanitize(SanitizeKind::BlockErase)).map_err(status::for_refusal)?;
    let volume = entry.volume;
    let id = server.controllers.next_list_id();
    if let Some(controller) = server.controllers.find_mut(cntlid) {
        controller.waiting.push(WaitingCommand { key, cid, on: AdminWait::Format { id, begun: false } });
    }
    server.context.steps.push_back(Step::Other(ControllerStep::FormatVolume { id, volume, who }));
    Ok(AdminOutcome::Later)
}

impl Server {
    /// The volume is closed for a format, and nothing keeps the format from being carried out any more.
    pub fn handle_format_begun(&mut self, id: u64) {
        let mut waiting = self.controllers.here.values_mut().flat_map(|controller| &mut controller.waiting);
        let begun = waiting.find_map(|waiting| match &mut waiting.on {
            AdminWait::Format { id: asked, begun } if *asked == id => Some(begun),
            _ => None,
        });
        match begun {
            Some(begun) => *begun = true,
            None => {
                let steps = &mut self.context.steps;
                self.controllers.settle_unanswered(steps, Unanswered::Format(id));
            }
        }
    }

    /// A format has ended ([`ControllerStep::FormatVolume`]). Its command may be gone.
    pub fn handle_format_end(&mut self, cx: &mut Cx<'_>, id: u64, end: Result<(), FormatFailure>) {
        let is_meant = |waiting: &WaitingCommand| matches!(waiting.on, AdminWait::Format { id: asked, .. } if asked == id);
        let Some((_, WaitingCommand { key, cid, .. })) = take_waiting(self, is_meant) else {
            return self.handle_format_begun(id);
        };
        let outcome = match end {
            Ok(()) => Ok(AdminOutcome::SUCCESS),
            Err(FormatFailure::Refused(refusal)) => Err(for_refused_format(refusal)),
            Err(FormatFailure::Failed) => Err(Status::SANITIZE_FAILED.with_do_not_retry()),
        };
        answer_unless_later(self, cx.pool, key, cid, outcome);
    }
}

/// What is refused only now has another cause than what was refused at once.
fn for_refused_format(refusal: Refusal) -> Status {
    match refusal {
        // It stands, and is not known everywhere yet.
        Refusal::NotFenced => Status::INTERNAL_ERROR,
        other => status::for_refusal(other),
    }
}
