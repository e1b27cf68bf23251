//! Which commands reservations allow: the tables of SPC-4 §5.13.1, SBC-3 §4.17 and, for RESERVE, SPC-2
//! §5.5.1, as one class per command.
//!
//! The classes match ALLOW COMMANDS 001b of REPORT CAPABILITIES: TEST UNIT READY is allowed, nothing is
//! promised about the other reports.

use super::{Command, StartStop};

/// Which reservations of another I_T nexus a command conflicts with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConflictClass {
    /// None.
    Never,
    /// RESERVE of SPC-2 only; every persistent reservation lets it pass.
    Legacy,
    /// RESERVE, and the exclusive access types.
    Read,
    /// RESERVE, and every type.
    Write,
}

impl Command {
    /// The class of this command. PERSISTENT RESERVE OUT checks keys besides, as its actions say.
    pub fn conflict_class(&self) -> ConflictClass {
        match *self {
            Command::RequestSense { .. }
            | Command::Inquiry(_)
            | Command::ReportLuns { .. }
            | Command::ReadCapacity10
            | Command::ReadCapacity16 { .. }
            | Command::LogSense(_)
            | Command::PreventAllow { prevent: false }
            | Command::StartStop(StartStop { start: true, power_condition: 0, .. })
            | Command::Release => ConflictClass::Never,
            Command::TestUnitReady
            | Command::ReportOpcodes(_)
            | Command::ReportTaskManagement { .. }
            | Command::ReportTargetPortGroups { .. }
            | Command::ReserveIn { .. }
            | Command::ReserveOut(_)
            | Command::CopyResults { .. }
            | Command::Reserve => ConflictClass::Legacy,
            Command::Read(_)
            | Command::Verify(_)
            | Command::PreFetch(_)
            | Command::GetLbaStatus { .. }
            | Command::ReadDefects(_)
            | Command::ReadBuffer(_) => ConflictClass::Read,
            Command::Write(_)
            | Command::WriteAndVerify(_)
            | Command::CompareAndWrite(_)
            | Command::OrWrite(_)
            | Command::WriteAtomic(_)
            | Command::WriteSame(_)
            | Command::Unmap { .. }
            | Command::SynchronizeCache(_)
            | Command::ModeSense(_)
            | Command::ModeSelect(_)
            | Command::StartStop(_)
            | Command::PreventAllow { prevent: true }
            | Command::SetTargetPortGroups { .. }
            | Command::ExtendedCopy { .. }
            | Command::Sanitize(_)
            | Command::FormatUnit(_)
            | Command::SendDiagnostic(_)
            | Command::WriteBuffer(_) => ConflictClass::Write,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes() {
        #[rustfmt::skip]
        let cases: &[(&[u8], ConflictClass)] = &[
            (&[0x00, 0, 0, 0, 0, 0], ConflictClass::Legacy),
            (&[0x12, 0, 0, 0, 36, 0], ConflictClass::Never),
            (&[0x17, 0, 0, 0, 0, 0], ConflictClass::Never),
            (&[0x1a, 0, 0x0a, 0, 255, 0], ConflictClass::Write),
            (&[0x1b, 0, 0, 0, 1, 0], ConflictClass::Never),
            (&[0x1b, 0, 0, 0, 0, 0], ConflictClass::Write),
            (&[0x1b, 0, 0, 0, 0x11, 0], ConflictClass::Write),
            (&[0x1e, 0, 0, 0, 0, 0], ConflictClass::Never),
            (&[0x1e, 0, 0, 0, 1, 0], ConflictClass::Write),
            (&[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], ConflictClass::Never),
            (&[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], ConflictClass::Read),
            (&[0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0], ConflictClass::Write),
            (&[0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0], ConflictClass::Write),
            (&[0x5e, 0, 0, 0, 0, 0, 0, 0, 8, 0], ConflictClass::Legacy),
        ];
        for (bytes, class) in cases {
            assert_eq!(Command::parse(bytes).unwrap().conflict_class(), *class, "{bytes:02x?}");
        }
    }
}
