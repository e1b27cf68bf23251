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
use scsi::lun::Address;
use scsi::{mode, report, vpd};
use volume::{Access, Failure, Refusal, Span, UnservableReason as NotReady};

use super::disposition::{self, Disposition, Refresh};
use super::unit_facts::{Complaint, UnitFacts};

/// How often one step is repeated because of unit attentions: more than one nexus can have waiting.
const ATTENTIONS_MAX: u32 = 32;
/// How often a target that puts a step off is asked again before [`Probe`] goes on to wait in peace.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// Allocation length of vital product data: devices that look at its low byte only give 252 bytes.
const PAGE_LEN: u16 = 0x0ffc;
/// The most logical unit numbers that a complaint lists.
const LISTED_MAX: usize = 8;

/// One question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
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

impl Step {
    /// The command, as people know it.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Step::Inquiry => "INQUIRY",
            Step::Luns => "REPORT LUNS",
            Step::Ready => "TEST UNIT READY",
            Step::Pages => "INQUIRY page 00h (supported pages)",
            Step::Serial => "INQUIRY page 80h (serial number)",
            Step::Identification => "INQUIRY page 83h (identification)",
            Step::Limits => "INQUIRY page B0h (block limits)",
            Step::Characteristics => "INQUIRY page B1h (characteristics)",
            Step::Provisioning => "INQUIRY page B2h (provisioning)",
            Step::Capacity16 => "READ CAPACITY(16)",
            Step::Capacity10 => "READ CAPACITY(10)",
            Step::Caching => "MODE SENSE page 08h (caching)",
            Step::AllModes => "MODE SENSE page 3Fh (all)",
            Step::PortGroups => "REPORT TARGET PORT GROUPS",
        }
    }
}

/// A probe under way.
#[derive(Debug)]
pub(super) struct Probe {
    pub(super) step: Step,
    /// What made it necessary.
    pub(super) scope: Refresh,
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
    Refused(Complaint),
}

impl Probe {
    /// Of everything.
    pub(super) fn whole(now: Time, until: Time) -> Self {
        Probe {
            step: Step::Inquiry,
            scope: Refresh::Identity,
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
    pub(super) fn again(scope: Refresh, facts: UnitFacts, now: Time, until: Time) -> Self {
        let step = match scope {
            Refresh::Identity => Step::Inquiry,
            Refresh::Access => Step::PortGroups,
            Refresh::Medium | Refresh::Nothing | Refresh::WriteLost => Step::Ready,
        };
        Probe { step, scope, facts, again: true, ..Probe::whole(now, until) }
    }

    /// The question, and how many bytes it may answer.
    pub(super) fn question(&self) -> (Command, usize) {
        let page = |page| {
            (Command::Inquiry(Inquiry { page: Some(page), allocation: PAGE_LEN }), usize::from(PAGE_LEN))
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
            Step::Inquiry => (Command::Inquiry(Inquiry { page: None, allocation: 96 }), 96),
            Step::Luns => (Command::ReportLuns { select: 0, allocation: 4096 }, 4096),
            Step::Ready => (Command::TestUnitReady, 0),
            Step::Pages => page(vpd::SUPPORTED),
            Step::Serial => page(vpd::SERIAL),
            Step::Identification => page(vpd::IDENTIFICATION),
            Step::Limits => page(vpd::BLOCK_LIMITS),
            Step::Characteristics => page(vpd::CHARACTERISTICS),
            Step::Provisioning => page(vpd::PROVISIONING),
            Step::Capacity16 => (Command::ReadCapacity16 { allocation: 32 }, 32),
            Step::Capacity10 => (Command::ReadCapacity10, 8),
            Step::Caching => modes(mode::CACHING),
            Step::AllModes => modes(mode::ALL_PAGES),
            Step::PortGroups => (Command::ReportTargetPortGroups { extended: false, allocation: 4096 }, 4096),
        }
    }

    /// Whether something was asked already that has changed since. Who the unit is is asked again by itself.
    pub(super) fn misses(&self, refresh: Refresh) -> bool {
        let before = matches!(
            self.step,
            Step::Inquiry | Step::Luns | Step::Ready | Step::Pages | Step::Serial | Step::Identification
        );
        refresh == Refresh::Medium && (self.unready || !before)
    }

    /// Takes a status with its sense data, and what came before it.
    pub(super) fn take(&mut self, status: ScsiStatus, sense: &[u8], data: &[u8]) -> ProbeProgress {
        let classified = disposition::classify(status, sense, Span { lba: 0, blocks: 0 });
        match classified.disposition {
            Disposition::Done => self.take_data(data),
            Disposition::Retry(_) if self.asks_who_it_is() && disposition::is_unready(status, sense) => {
                self.unready = true;
                self.go_on()
            }
            Disposition::Retry(after) => {
                let attention = after.is_zero();
                let count = if attention { &mut self.attentions } else { &mut self.waits };
                *count += 1;
                if attention && *count > ATTENTIONS_MAX {
                    return ProbeProgress::Refused(
                        "the target answers with unit attentions without end; look into the target"
                            .to_owned(),
                    );
                }
                if classified.refresh == Refresh::Identity {
                    // What was told so far may be of the unit before.
                    (self.scope, self.unready) = (Refresh::Identity, false);
                    return self.go(Step::Inquiry);
                }
                let busy = after * self.waits.min(64);
                ProbeProgress::Ask(if attention { after } else { busy.min(WAIT_MAX) })
            }
            Disposition::OtherPath(_) if classified.refresh == Refresh::Identity => self.take_absence(),
            // The path's state is known; what else there is to know answers in every state.
            Disposition::OtherPath(_) if classified.refresh == Refresh::Access => {
                self.facts.refused(sense);
                self.take_refusal()
            }
            Disposition::OtherPath(after) => ProbeProgress::Ask(after),
            Disposition::Failed(Failure::Refused(Refusal::NotReady(why))) if self.step == Step::Ready => {
                if !self.asks_who_it_is() {
                    return ProbeProgress::Refused(unready(why));
                }
                self.unready = true;
                self.go_on()
            }
            Disposition::Failed(_) | Disposition::Unsupported => self.take_refusal(),
        }
    }

    /// Whether it is asked if another unit stands there by now, and whether it is ready: it need not be to tell.
    fn asks_who_it_is(&self) -> bool {
        self.again && self.scope == Refresh::Identity && self.step == Step::Ready
    }

    /// The step has no answer.
    fn take_refusal(&mut self) -> ProbeProgress {
        let refused = |what: &str| {
            ProbeProgress::Refused(format!("the target does not answer {what}; look into its log"))
        };
        match self.step {
            Step::Inquiry => refused("INQUIRY"),
            Step::Luns => self.take_absence(),
            Step::Pages => {
                self.facts.take_pages(&[]);
                self.facts.forget_untold();
                self.go_on()
            }
            // A name that it does not tell any more is no name of it.
            Step::Serial => {
                self.facts.take_serial(&[]);
                self.go_on()
            }
            Step::Identification => {
                self.facts.take_identification(&[]);
                self.go_on()
            }
            Step::Capacity16 => self.go(Step::Capacity10),
            // A path that does not serve need not tell: another one will.
            Step::Capacity10 if !self.facts.serves() => self.go_on(),
            Step::Capacity10 => refused("READ CAPACITY"),
            Step::Caching => self.go(Step::AllModes),
            // A reservation of another host may forbid it, and nothing depends on it.
            Step::Ready | Step::AllModes | Step::PortGroups => self.go_on(),
            Step::Limits | Step::Characteristics | Step::Provisioning => self.go_on(),
        }
    }

    fn take_absence(&mut self) -> ProbeProgress {
        if self.step == Step::Luns {
            return ProbeProgress::Refused("the target has no logical unit of this number".to_owned());
        }
        self.go(Step::Luns)
    }

    fn take_data(&mut self, data: &[u8]) -> ProbeProgress {
        let facts = &mut self.facts;
        match self.step {
            Step::Inquiry => match facts.take_inquiry(data) {
                Ok(true) => {}
                Ok(false) => return self.go(Step::Luns),
                Err(complaint) => return ProbeProgress::Refused(complaint),
            },
            Step::Luns => return ProbeProgress::Refused(list_units_instead(data)),
            Step::Capacity16 | Step::Capacity10 => {
                let long = self.step == Step::Capacity16;
                let taken = if long { facts.take_capacity_16(data) } else { facts.take_capacity_10(data) };
                if let Err(complaint) = taken {
                    return ProbeProgress::Refused(complaint);
                }
            }
            Step::Caching => {
                if !facts.take_mode(data) {
                    return self.go(Step::AllModes);
                }
            }
            Step::AllModes => _ = facts.take_mode(data),
            // What serves, serves; port groups say more.
            Step::Ready => facts.set_access(Access::Optimized),
            Step::Pages => {
                facts.take_pages(data);
                facts.forget_untold();
            }
            Step::Serial => facts.take_serial(data),
            Step::Identification => facts.take_identification(data),
            Step::Limits => facts.take_limits(data),
            Step::Characteristics => facts.take_characteristics(data),
            Step::Provisioning => facts.take_provisioning(data),
            Step::PortGroups => facts.take_port_groups(data),
        }
        self.go_on()
    }

    fn go(&mut self, step: Step) -> ProbeProgress {
        (self.step, self.waits) = (step, 0);
        ProbeProgress::Ask(Duration::ZERO)
    }

    /// The question behind this one that concerns the logical unit.
    fn go_on(&mut self) -> ProbeProgress {
        loop {
            let identity = self.scope == Refresh::Identity;
            let next = match self.step {
                Step::Inquiry => Step::Ready,
                Step::Ready if identity => Step::Pages,
                Step::Ready => Step::Limits,
                Step::Pages => Step::Serial,
                Step::Serial => Step::Identification,
                Step::Identification if self.unready => return ProbeProgress::Known,
                Step::Identification => Step::Limits,
                Step::Limits => Step::Characteristics,
                Step::Characteristics => Step::Provisioning,
                Step::Provisioning => Step::Capacity16,
                Step::Capacity16 | Step::Capacity10 => Step::Caching,
                Step::Caching | Step::AllModes => Step::PortGroups,
                Step::PortGroups | Step::Luns => return ProbeProgress::Known,
            };
            self.step = next;
            let asked = match next {
                Step::Serial => self.facts.has_page(vpd::SERIAL),
                Step::Identification => self.facts.has_page(vpd::IDENTIFICATION),
                Step::Limits => self.facts.has_page(vpd::BLOCK_LIMITS),
                Step::Characteristics => self.facts.has_page(vpd::CHARACTERISTICS),
                Step::Provisioning => self.facts.has_page(vpd::PROVISIONING),
                Step::PortGroups => self.facts.has_port_groups(),
                _ => true,
            };
            if asked {
                return self.go(next);
            }
        }
    }
}

fn unready(why: NotReady) -> Complaint {
    let text = match why {
        NotReady::Stopped => "the logical unit is stopped; start it at the target",
        NotReady::NoMedium => "the logical unit has no medium; load one at the target",
        NotReady::Sanitizing(_) => "the logical unit is being sanitized; wait until that has ended",
        NotReady::SanitizeFailed => "a sanitize of the logical unit failed; end that state at the target",
        NotReady::SyncFailed | NotReady::Removed => {
            "the logical unit is not ready; look into the target's log"
        }
    };
    text.to_owned()
}

/// Which logical units there are instead.
fn list_units_instead(data: &[u8]) -> Complaint {
    let numbers: Vec<String> = report::decode_luns(data)
        .filter_map(|address| match address {
            Address::Unit(lun) => Some(lun.number().to_string()),
            Address::WellKnown(_) => None,
        })
        .take(LISTED_MAX + 1)
        .collect();
    match numbers.as_slice() {
        [] => "the target shows us no logical unit; let its access rules give us one".to_owned(),
        [some @ .., _more] if some.len() >= LISTED_MAX => {
            format!("the target has no logical unit of this number, but {} and more", some.join(", "))
        }
        some => format!("the target has no logical unit of this number, but {}", some.join(", ")),
    }
}
