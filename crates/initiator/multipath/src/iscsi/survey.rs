//! The commands by which a path learns what is at its other end: all of them before it is up, some of them
//! again when the target says that something changed.
//!
//! One command is in work at a time. A survey ends: every step is repeated a bounded number of times, and
//! its owner watches the clock.

use std::time::Duration;

use buf::Time;
use iscsi::wire::ScsiStatus;
use scsi::Command;
use scsi::cdb::{Inquiry, ModeForm, ModeSense, PageControl};
use scsi::lun::Address;
use scsi::{mode, report, vpd};
use volume::{Access, Failure, Refusal, Span, UnservableReason as NotReady};

use super::found::{Complaint, Found};
use super::verdict::{self, Learn, Verdict};

/// How often one step is repeated because of unit attentions: more than one nexus can have waiting.
const ATTENTIONS_MAX: u32 = 32;
/// How often a target that puts a step off is asked again before [`Survey`] goes on to wait in peace.
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

/// A survey under way.
#[derive(Debug)]
pub(super) struct Survey {
    pub(super) step: Step,
    /// What made it necessary.
    pub(super) scope: Learn,
    pub(super) found: Found,
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
pub(super) enum Next {
    /// Ask the next question, after this time.
    VolumeRequest(Duration),
    /// All is known.
    Known,
    /// The logical unit cannot be used.
    Refused(Complaint),
}

impl Survey {
    /// Of everything.
    pub(super) fn whole(now: Time, until: Time) -> Self {
        Survey {
            step: Step::Inquiry,
            scope: Learn::Identity,
            found: Found::new(),
            again: false,
            unready: false,
            attentions: 0,
            waits: 0,
            due: Some(now),
            until,
        }
    }

    /// Of what may have changed, from what is known.
    pub(super) fn again(scope: Learn, found: Found, now: Time, until: Time) -> Self {
        let step = match scope {
            Learn::Identity => Step::Inquiry,
            Learn::Access => Step::PortGroups,
            Learn::Medium | Learn::Nothing | Learn::WriteLost => Step::Ready,
        };
        Survey { step, scope, found, again: true, ..Survey::whole(now, until) }
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
    pub(super) fn misses(&self, learn: Learn) -> bool {
        let before = matches!(
            self.step,
            Step::Inquiry | Step::Luns | Step::Ready | Step::Pages | Step::Serial | Step::Identification
        );
        learn == Learn::Medium && (self.unready || !before)
    }

    /// Takes a status with its sense data, and what came before it.
    pub(super) fn take(&mut self, status: ScsiStatus, sense: &[u8], data: &[u8]) -> Next {
        let judged = verdict::judge(status, sense, Span { lba: 0, blocks: 0 });
        match judged.verdict {
            Verdict::Done => self.take_data(data),
            Verdict::Again(_) if self.asks_who_it_is() && verdict::is_unready(status, sense) => {
                self.unready = true;
                self.go_on()
            }
            Verdict::Again(after) => {
                let attention = after.is_zero();
                let count = if attention { &mut self.attentions } else { &mut self.waits };
                *count += 1;
                if attention && *count > ATTENTIONS_MAX {
                    return Next::Refused(
                        "the target answers with unit attentions without end; look into the target"
                            .to_owned(),
                    );
                }
                if judged.learn == Learn::Identity {
                    // What was told so far may be of the unit before.
                    (self.scope, self.unready) = (Learn::Identity, false);
                    return self.go(Step::Inquiry);
                }
                let busy = after * self.waits.min(64);
                Next::VolumeRequest(if attention { after } else { busy.min(WAIT_MAX) })
            }
            Verdict::Elsewhere(_) if judged.learn == Learn::Identity => self.take_absence(),
            // The path's state is known; what else there is to know answers in every state.
            Verdict::Elsewhere(_) if judged.learn == Learn::Access => {
                self.found.refused(sense);
                self.take_refusal()
            }
            Verdict::Elsewhere(after) => Next::VolumeRequest(after),
            Verdict::Failed(Failure::Refused(Refusal::NotReady(why))) if self.step == Step::Ready => {
                if !self.asks_who_it_is() {
                    return Next::Refused(unready(why));
                }
                self.unready = true;
                self.go_on()
            }
            Verdict::Failed(_) | Verdict::Unknown => self.take_refusal(),
        }
    }

    /// Whether it is asked if another unit stands there by now, and whether it is ready: it need not be to tell.
    fn asks_who_it_is(&self) -> bool {
        self.again && self.scope == Learn::Identity && self.step == Step::Ready
    }

    /// The step has no answer.
    fn take_refusal(&mut self) -> Next {
        let refused =
            |what: &str| Next::Refused(format!("the target does not answer {what}; look into its log"));
        match self.step {
            Step::Inquiry => refused("INQUIRY"),
            Step::Luns => self.take_absence(),
            Step::Pages => {
                self.found.take_pages(&[]);
                self.found.forget_untold();
                self.go_on()
            }
            // A name that it does not tell any more is no name of it.
            Step::Serial => {
                self.found.take_serial(&[]);
                self.go_on()
            }
            Step::Identification => {
                self.found.take_identification(&[]);
                self.go_on()
            }
            Step::Capacity16 => self.go(Step::Capacity10),
            // A path that does not serve need not tell: another one will.
            Step::Capacity10 if !self.found.serves() => self.go_on(),
            Step::Capacity10 => refused("READ CAPACITY"),
            Step::Caching => self.go(Step::AllModes),
            // A reservation of another host may forbid it, and nothing depends on it.
            Step::Ready | Step::AllModes | Step::PortGroups => self.go_on(),
            Step::Limits | Step::Characteristics | Step::Provisioning => self.go_on(),
        }
    }

    fn take_absence(&mut self) -> Next {
        if self.step == Step::Luns {
            return Next::Refused("the target has no logical unit of this number".to_owned());
        }
        self.go(Step::Luns)
    }

    fn take_data(&mut self, data: &[u8]) -> Next {
        let found = &mut self.found;
        match self.step {
            Step::Inquiry => match found.take_inquiry(data) {
                Ok(true) => {}
                Ok(false) => return self.go(Step::Luns),
                Err(complaint) => return Next::Refused(complaint),
            },
            Step::Luns => return Next::Refused(absent(data)),
            Step::Capacity16 | Step::Capacity10 => {
                let long = self.step == Step::Capacity16;
                let taken = if long { found.take_capacity_16(data) } else { found.take_capacity_10(data) };
                if let Err(complaint) = taken {
                    return Next::Refused(complaint);
                }
            }
            Step::Caching => {
                if !found.take_mode(data) {
                    return self.go(Step::AllModes);
                }
            }
            Step::AllModes => _ = found.take_mode(data),
            // What serves, serves; port groups say more.
            Step::Ready => found.set_access(Access::Optimized),
            Step::Pages => {
                found.take_pages(data);
                found.forget_untold();
            }
            Step::Serial => found.take_serial(data),
            Step::Identification => found.take_identification(data),
            Step::Limits => found.take_limits(data),
            Step::Characteristics => found.take_characteristics(data),
            Step::Provisioning => found.take_provisioning(data),
            Step::PortGroups => found.take_port_groups(data),
        }
        self.go_on()
    }

    fn go(&mut self, step: Step) -> Next {
        (self.step, self.waits) = (step, 0);
        Next::VolumeRequest(Duration::ZERO)
    }

    /// The question behind this one that concerns the logical unit.
    fn go_on(&mut self) -> Next {
        loop {
            let identity = self.scope == Learn::Identity;
            let next = match self.step {
                Step::Inquiry => Step::Ready,
                Step::Ready if identity => Step::Pages,
                Step::Ready => Step::Limits,
                Step::Pages => Step::Serial,
                Step::Serial => Step::Identification,
                Step::Identification if self.unready => return Next::Known,
                Step::Identification => Step::Limits,
                Step::Limits => Step::Characteristics,
                Step::Characteristics => Step::Provisioning,
                Step::Provisioning => Step::Capacity16,
                Step::Capacity16 | Step::Capacity10 => Step::Caching,
                Step::Caching | Step::AllModes => Step::PortGroups,
                Step::PortGroups | Step::Luns => return Next::Known,
            };
            self.step = next;
            let asked = match next {
                Step::Serial => self.found.has_page(vpd::SERIAL),
                Step::Identification => self.found.has_page(vpd::IDENTIFICATION),
                Step::Limits => self.found.has_page(vpd::BLOCK_LIMITS),
                Step::Characteristics => self.found.has_page(vpd::CHARACTERISTICS),
                Step::Provisioning => self.found.has_page(vpd::PROVISIONING),
                Step::PortGroups => self.found.has_port_groups(),
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
        NotReady::Sanitizing(_) => "the logical unit is being sanitized; wait until that is over",
        NotReady::SanitizeFailed => "a sanitize of the logical unit failed; end that state at the target",
        NotReady::SyncFailed | NotReady::Removed => {
            "the logical unit is not ready; look into the target's log"
        }
    };
    text.to_owned()
}

/// Which logical units there are instead.
fn absent(data: &[u8]) -> Complaint {
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
