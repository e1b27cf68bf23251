//! The commands by which a path identifies its logical unit: all of them before the path is up, some of them
//! again when the target reports a change.
//!
//! One command is in flight at a time. A probe ends: every step is repeated a bounded number of times, and
//! its owner keeps the deadline.

use std::time::Duration;

use buf::Time;
use iscsi::wire::ScsiStatus;
use scsi::Command;
use scsi::cdb::{Inquiry, ModeForm, ModeSense, PageControl};
use scsi::lun::LunAddress;
use scsi::{mode, report, vpd};
use volume::{Failure, PathAccess, Refusal, Span, UnservableReason as NotReady};

use super::disposition::{self, CommandDisposition, FactsRefresh};
use super::unit_facts::{UnitFacts, UnusableReason};

/// How often one step is repeated because of unit attentions: more than one nexus can have waiting.
const UNIT_ATTENTIONS_MAX: u32 = 32;
/// How often a target that puts a step off is asked again before [`Probe`] goes on to wait in peace.
const RETRY_DELAY_MAX: Duration = Duration::from_secs(1);
/// Allocation length of vital product data: devices that look at its low byte only give 252 bytes.
const VPD_ALLOCATION_LEN: u16 = 0x0ffc;
/// The most logical unit numbers that a complaint lists.
const LISTED_LUNS_MAX: usize = 8;

/// One question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProbeStep {
    Inquiry,
    Luns,
    Ready,
    Pages,
    Serial,
    Identification,
    Limits,
    Characteristics,
    Provisioning,
    Capacity16,
    Capacity10,
    Caching,
    AllModes,
    PortGroups,
}

impl ProbeStep {
    /// The command, as people know it.
    pub(super) const fn command_name(self) -> &'static str {
        match self {
            ProbeStep::Inquiry => "INQUIRY",
            ProbeStep::Luns => "REPORT LUNS",
            ProbeStep::Ready => "TEST UNIT READY",
            ProbeStep::Pages => "INQUIRY page 00h (supported pages)",
            ProbeStep::Serial => "INQUIRY page 80h (serial number)",
            ProbeStep::Identification => "INQUIRY page 83h (identification)",
            ProbeStep::Limits => "INQUIRY page B0h (block limits)",
            ProbeStep::Characteristics => "INQUIRY page B1h (characteristics)",
            ProbeStep::Provisioning => "INQUIRY page B2h (provisioning)",
            ProbeStep::Capacity16 => "READ CAPACITY(16)",
            ProbeStep::Capacity10 => "READ CAPACITY(10)",
            ProbeStep::Caching => "MODE SENSE page 08h (caching)",
            ProbeStep::AllModes => "MODE SENSE page 3Fh (all)",
            ProbeStep::PortGroups => "REPORT TARGET PORT GROUPS",
        }
    }
}

/// A probe under way.
#[derive(Debug)]
pub(super) struct Probe {
    pub(super) step: ProbeStep,
    /// What made it necessary.
    pub(super) scope: FactsRefresh,
    pub(super) facts: UnitFacts,
    /// The path is up: who it led to is known.
    again: bool,
    /// It is not ready: who it is is asked, and nothing else.
    unready: bool,
    attentions: u32,
    waits: u32,
    /// When the step is to be asked; `None`: it is being asked.
    pub(super) due: Option<Time>,
    /// When it must be over.
    pub(super) until: Time,
}

/// What follows from an answer.
#[derive(Debug)]
pub(super) enum ProbeProgress {
    /// Ask the next question, after this time.
    Ask(Duration),
    /// All is known.
    Known,
    /// The logical unit cannot be used.
    Refused(UnusableReason),
}

impl Probe {
    /// Of everything.
    pub(super) fn full(now: Time, until: Time) -> Self {
        Probe {
            step: ProbeStep::Inquiry,
            scope: FactsRefresh::Identity,
            facts: UnitFacts::new(),
            again: false,
            unready: false,
            attentions: 0,
            waits: 0,
            due: Some(now),
            until,
        }
    }

    /// Of what may have changed, from what is known.
    pub(super) fn reprobe(scope: FactsRefresh, facts: UnitFacts, now: Time, until: Time) -> Self {
        let step = match scope {
            FactsRefresh::Identity => ProbeStep::Inquiry,
            FactsRefresh::Access => ProbeStep::PortGroups,
            FactsRefresh::Medium | FactsRefresh::Nothing | FactsRefresh::WriteLost => ProbeStep::Ready,
        };
        Probe { step, scope, facts, again: true, ..Probe::full(now, until) }
    }

    /// The question, and how many bytes it may answer.
    pub(super) fn next_command(&self) -> (Command, usize) {
        let page = |page| {
            (
                Command::Inquiry(Inquiry { page: Some(page), allocation: VPD_ALLOCATION_LEN }),
                usize::from(VPD_ALLOCATION_LEN),
            )
        };
        let modes = |page| {
            let command = Command::ModeSense(ModeSense {
                form: ModeForm::Six,
                disable_block_descriptors: true,
                long_lba: false,
                control: PageControl::Current,
                page,
                subpage: 0,
                allocation: 192,
            });
            (command, 192)
        };
        match self.step {
            ProbeStep::Inquiry => (Command::Inquiry(Inquiry { page: None, allocation: 96 }), 96),
            ProbeStep::Luns => (Command::ReportLuns { select: 0, allocation: 4096 }, 4096),
            ProbeStep::Ready => (Command::TestUnitReady, 0),
            ProbeStep::Pages => page(vpd::SUPPORTED_PAGES),
            ProbeStep::Serial => page(vpd::UNIT_SERIAL_NUMBER),
            ProbeStep::Identification => page(vpd::DEVICE_IDENTIFICATION),
            ProbeStep::Limits => page(vpd::BLOCK_LIMITS),
            ProbeStep::Characteristics => page(vpd::BLOCK_DEVICE_CHARACTERISTICS),
            ProbeStep::Provisioning => page(vpd::PROVISIONING),
            ProbeStep::Capacity16 => (Command::ReadCapacity16 { allocation: 32 }, 32),
            ProbeStep::Capacity10 => (Command::ReadCapacity10, 8),
            ProbeStep::Caching => modes(mode::CACHING),
            ProbeStep::AllModes => modes(mode::ALL_PAGES),
            ProbeStep::PortGroups => {
                (Command::ReportTargetPortGroups { extended: false, allocation: 4096 }, 4096)
            }
        }
    }

    /// Whether something was asked already that has changed since. Who the unit is is asked again by itself.
    pub(super) fn is_outdated_by(&self, refresh: FactsRefresh) -> bool {
        let before = matches!(
            self.step,
            ProbeStep::Inquiry
                | ProbeStep::Luns
                | ProbeStep::Ready
                | ProbeStep::Pages
                | ProbeStep::Serial
                | ProbeStep::Identification
        );
        refresh == FactsRefresh::Medium && (self.unready || !before)
    }

    /// Takes a status with its sense data, and what came before it.
    pub(super) fn handle_answer(&mut self, status: ScsiStatus, sense: &[u8], data: &[u8]) -> ProbeProgress {
        let classified = disposition::classify_status(status, sense, Span { lba: 0, blocks: 0 });
        match classified.disposition {
            CommandDisposition::Done => self.handle_step_data(data),
            CommandDisposition::Retry(_)
                if self.checks_identity_readiness() && disposition::is_not_ready(status, sense) =>
            {
                self.unready = true;
                self.start_next_step()
            }
            CommandDisposition::Retry(after) => {
                let attention = after.is_zero();
                let count = if attention { &mut self.attentions } else { &mut self.waits };
                *count += 1;
                if attention && *count > UNIT_ATTENTIONS_MAX {
                    return ProbeProgress::Refused(
                        "the target answers with unit attentions without end; look into the target"
                            .to_owned(),
                    );
                }
                if classified.refresh == FactsRefresh::Identity {
                    // What was told so far may be of the unit before.
                    (self.scope, self.unready) = (FactsRefresh::Identity, false);
                    return self.start_step(ProbeStep::Inquiry);
                }
                let busy = after * self.waits.min(64);
                ProbeProgress::Ask(if attention { after } else { busy.min(RETRY_DELAY_MAX) })
            }
            CommandDisposition::OtherPath(_) if classified.refresh == FactsRefresh::Identity => {
                self.handle_unit_absent()
            }
            // The path's state is known; what else there is to know answers in every state.
            CommandDisposition::OtherPath(_) if classified.refresh == FactsRefresh::Access => {
                self.facts.note_access_refused(sense);
                self.handle_step_refused()
            }
            CommandDisposition::OtherPath(after) => ProbeProgress::Ask(after),
            CommandDisposition::Failed(Failure::Refused(Refusal::NotReady(why)))
                if self.step == ProbeStep::Ready =>
            {
                if !self.checks_identity_readiness() {
                    return ProbeProgress::Refused(not_ready_complaint(why));
                }
                self.unready = true;
                self.start_next_step()
            }
            CommandDisposition::Failed(_) | CommandDisposition::Unsupported => self.handle_step_refused(),
        }
    }

    /// Whether it is asked if another unit stands there by now, and whether it is ready: it need not be to tell.
    fn checks_identity_readiness(&self) -> bool {
        self.again && self.scope == FactsRefresh::Identity && self.step == ProbeStep::Ready
    }

    /// The step has no answer.
    fn handle_step_refused(&mut self) -> ProbeProgress {
        let refused = |what: &str| {
            ProbeProgress::Refused(format!("the target does not answer {what}; look into its log"))
        };
        match self.step {
            ProbeStep::Inquiry => refused("INQUIRY"),
            ProbeStep::Luns => self.handle_unit_absent(),
            ProbeStep::Pages => {
                self.facts.parse_supported_pages(&[]);
                self.facts.clear_unsupported_pages();
                self.start_next_step()
            }
            // A name that it does not tell any more is no name of it.
            ProbeStep::Serial => {
                self.facts.parse_serial(&[]);
                self.start_next_step()
            }
            ProbeStep::Identification => {
                self.facts.parse_device_identification(&[]);
                self.start_next_step()
            }
            ProbeStep::Capacity16 => self.start_step(ProbeStep::Capacity10),
            // A path that does not serve need not tell: another one will.
            ProbeStep::Capacity10 if !self.facts.serves() => self.start_next_step(),
            ProbeStep::Capacity10 => refused("READ CAPACITY"),
            ProbeStep::Caching => self.start_step(ProbeStep::AllModes),
            // A reservation of another host may forbid it, and nothing depends on it.
            ProbeStep::Ready | ProbeStep::AllModes | ProbeStep::PortGroups => self.start_next_step(),
            ProbeStep::Limits | ProbeStep::Characteristics | ProbeStep::Provisioning => {
                self.start_next_step()
            }
        }
    }

    fn handle_unit_absent(&mut self) -> ProbeProgress {
        if self.step == ProbeStep::Luns {
            return ProbeProgress::Refused("the target has no logical unit of this number".to_owned());
        }
        self.start_step(ProbeStep::Luns)
    }

    fn handle_step_data(&mut self, data: &[u8]) -> ProbeProgress {
        let facts = &mut self.facts;
        match self.step {
            ProbeStep::Inquiry => match facts.parse_inquiry(data) {
                Ok(true) => {}
                Ok(false) => return self.start_step(ProbeStep::Luns),
                Err(complaint) => return ProbeProgress::Refused(complaint),
            },
            ProbeStep::Luns => return ProbeProgress::Refused(other_luns_complaint(data)),
            ProbeStep::Capacity16 | ProbeStep::Capacity10 => {
                let long = self.step == ProbeStep::Capacity16;
                let taken = if long { facts.parse_capacity_16(data) } else { facts.parse_capacity_10(data) };
                if let Err(complaint) = taken {
                    return ProbeProgress::Refused(complaint);
                }
            }
            ProbeStep::Caching => {
                if !facts.parse_mode_sense(data) {
                    return self.start_step(ProbeStep::AllModes);
                }
            }
            ProbeStep::AllModes => _ = facts.parse_mode_sense(data),
            // What serves, serves; port groups say more.
            ProbeStep::Ready => facts.set_access(PathAccess::Optimized),
            ProbeStep::Pages => {
                facts.parse_supported_pages(data);
                facts.clear_unsupported_pages();
            }
            ProbeStep::Serial => facts.parse_serial(data),
            ProbeStep::Identification => facts.parse_device_identification(data),
            ProbeStep::Limits => facts.parse_block_limits(data),
            ProbeStep::Characteristics => facts.parse_block_characteristics(data),
            ProbeStep::Provisioning => facts.parse_logical_provisioning(data),
            ProbeStep::PortGroups => facts.parse_target_port_groups(data),
        }
        self.start_next_step()
    }

    fn start_step(&mut self, step: ProbeStep) -> ProbeProgress {
        (self.step, self.waits) = (step, 0);
        ProbeProgress::Ask(Duration::ZERO)
    }

    /// The question behind this one that concerns the logical unit.
    fn start_next_step(&mut self) -> ProbeProgress {
        loop {
            let identity = self.scope == FactsRefresh::Identity;
            let next = match self.step {
                ProbeStep::Inquiry => ProbeStep::Ready,
                ProbeStep::Ready if identity => ProbeStep::Pages,
                ProbeStep::Ready => ProbeStep::Limits,
                ProbeStep::Pages => ProbeStep::Serial,
                ProbeStep::Serial => ProbeStep::Identification,
                ProbeStep::Identification if self.unready => return ProbeProgress::Known,
                ProbeStep::Identification => ProbeStep::Limits,
                ProbeStep::Limits => ProbeStep::Characteristics,
                ProbeStep::Characteristics => ProbeStep::Provisioning,
                ProbeStep::Provisioning => ProbeStep::Capacity16,
                ProbeStep::Capacity16 | ProbeStep::Capacity10 => ProbeStep::Caching,
                ProbeStep::Caching | ProbeStep::AllModes => ProbeStep::PortGroups,
                ProbeStep::PortGroups | ProbeStep::Luns => return ProbeProgress::Known,
            };
            self.step = next;
            let asked = match next {
                ProbeStep::Serial => self.facts.has_vpd_page(vpd::UNIT_SERIAL_NUMBER),
                ProbeStep::Identification => self.facts.has_vpd_page(vpd::DEVICE_IDENTIFICATION),
                ProbeStep::Limits => self.facts.has_vpd_page(vpd::BLOCK_LIMITS),
                ProbeStep::Characteristics => self.facts.has_vpd_page(vpd::BLOCK_DEVICE_CHARACTERISTICS),
                ProbeStep::Provisioning => self.facts.has_vpd_page(vpd::PROVISIONING),
                ProbeStep::PortGroups => self.facts.supports_port_groups(),
                _ => true,
            };
            if asked {
                return self.start_step(next);
            }
        }
    }
}

fn not_ready_complaint(why: NotReady) -> UnusableReason {
    let text = match why {
        NotReady::Stopped => "the logical unit is stopped; start it at the target",
        NotReady::NoMedium => "the logical unit has no medium; load one at the target",
        NotReady::Sanitizing(_) => "the logical unit is being sanitized; wait until that has ended",
        NotReady::Formatting(_) => "the logical unit is being formatted; wait until that has ended",
        NotReady::SanitizeFailed => "a sanitize of the logical unit failed; end that state at the target",
        NotReady::SyncFailed | NotReady::Removed => {
            "the logical unit is not ready; look into the target's log"
        }
    };
    text.to_owned()
}

/// Which logical units there are instead.
fn other_luns_complaint(data: &[u8]) -> UnusableReason {
    let numbers: Vec<String> = report::decode_luns(data)
        .filter_map(|address| match address {
            LunAddress::Unit(lun) => Some(lun.number().to_string()),
            LunAddress::WellKnown(_) => None,
        })
        .take(LISTED_LUNS_MAX + 1)
        .collect();
    match numbers.as_slice() {
        [] => "the target shows us no logical unit; let its access rules give us one".to_owned(),
        [some @ .., _more] if some.len() >= LISTED_LUNS_MAX => {
            format!("the target has no logical unit of this number, but {} and more", some.join(", "))
        }
        some => format!("the target has no logical unit of this number, but {}", some.join(", ")),
    }
}
