//! `blockwire reserve`: reservations of a remote volume, with the same terms over both protocols.

use clap::{Args, ValueEnum};
use client::{IsidChoice, Registration, ReservationOp, Reservations, Settings};
use volume::reservation::{Action, Key, RegisterMode, RegistrationRequest, ReservationType};

use transfer::reservation_names::{registrant_name, reservation_type_name};

use super::{create_initiator, json_text, print};
use control::secret_url::SecretUrl;
use process::exit::{Exit, Failure};
use reports::RemoteReservationReport;

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReserveAction {
    /// Show the registrants and the reservation
    Report,
    /// Register this machine with --key
    Register,
    /// Change this machine's key from --key to --new-key
    Replace,
    /// Unregister this machine
    Unregister,
    /// Take the reservation
    Reserve,
    /// Release the reservation
    Release,
    /// Remove the reservation and all registrations
    Clear,
    /// Remove the registrations of --victim, and its reservation if it holds one
    Preempt,
    /// The same, and abort its commands
    PreemptAbort,
}

/// The six types, named as both standards name them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReservationTypeName {
    /// One holder, others may read
    WriteExclusive,
    /// One holder, others may neither read nor write
    ExclusiveAccess,
    /// One holder, all registrants may write
    WriteExclusiveRegistrants,
    /// One holder, all registrants may read and write
    ExclusiveAccessRegistrants,
    /// All registrants hold it, others may read
    WriteExclusiveAll,
    /// All registrants hold it, others may neither read nor write
    ExclusiveAccessAll,
}

impl ReservationTypeName {
    fn to_reservation_type(self) -> ReservationType {
        match self {
            ReservationTypeName::WriteExclusive => ReservationType::WriteExclusive,
            ReservationTypeName::ExclusiveAccess => ReservationType::ExclusiveAccess,
            ReservationTypeName::WriteExclusiveRegistrants => ReservationType::WriteExclusiveRegistrants,
            ReservationTypeName::ExclusiveAccessRegistrants => ReservationType::ExclusiveAccessRegistrants,
            ReservationTypeName::WriteExclusiveAll => ReservationType::WriteExclusiveAll,
            ReservationTypeName::ExclusiveAccessAll => ReservationType::ExclusiveAccessAll,
        }
    }
}

/// `reserve`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  blockwire reserve iscsi://10.0.0.1/iqn.2026-11.io.blockwire:db/0 report
  blockwire reserve nvme+tcp://10.0.0.1/nqn.2026-11.io.blockwire:db/1 register \\
      --key 0xabc1
  blockwire reserve nvme+tcp://10.0.0.1/nqn.2026-11.io.blockwire:db/1 reserve \\
      --key 0xabc1 --type write-exclusive

This machine is the same registrant at each call: over iSCSI by its initiator name and a lasting ISID, over \
NVMe/TCP by its host identifier.")]
pub struct ReserveArgs {
    /// The volume, by one path
    pub url: SecretUrl,
    /// What to do
    pub word: ReserveAction,
    /// This machine's key: a number, decimal or 0x and hexadecimal
    #[arg(long, value_parser = parse_key)]
    pub key: Option<Key>,
    /// The new key
    #[arg(long, value_parser = parse_key)]
    pub new_key: Option<Key>,
    /// The key whose registrations are removed
    #[arg(long, value_parser = parse_key)]
    pub victim: Option<Key>,
    /// The type of the reservation
    #[arg(long = "type", value_name = "TYPE")]
    pub kind: Option<ReservationTypeName>,
    /// Whether registrations survive a restart of the target
    #[arg(long, value_name = "yes|no", value_parser = parse_yes_no)]
    pub persist: Option<bool>,
    /// Register regardless of this machine's current key
    #[arg(long)]
    pub ignore_key: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

fn parse_key(text: &str) -> Result<Key, String> {
    let number = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    match number {
        Ok(0) => Err("0 is no key".to_owned()),
        Ok(number) => Ok(Key(number)),
        Err(_) => Err("a key is a number of 64 bits, for example 0xabc1".to_owned()),
    }
}

fn parse_yes_no(text: &str) -> Result<bool, String> {
    match text {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err("yes or no".to_owned()),
    }
}

/// The reservation operation that the arguments name.
fn reservation_op(args: &ReserveArgs) -> Result<ReservationOp, Failure> {
    let needs =
        |key: Option<Key>, option: &str| key.ok_or_else(|| Failure::usage(format!("this needs {option}")));
    let own = || needs(args.key, "--key, this machine's key").map(Some);
    let kind = || {
        args.kind
            .map(ReservationTypeName::to_reservation_type)
            .ok_or_else(|| Failure::usage("this needs --type"))
    };
    let register = |mode, current: Option<Key>, new| {
        let current = if args.ignore_key { None } else { current };
        let persist = args.persist;
        Action::Register(RegistrationRequest { mode, persist, ..RegistrationRequest::new(current, new) })
    };
    Ok(ReservationOp::Change(match args.word {
        ReserveAction::Report => return Ok(ReservationOp::Report),
        ReserveAction::Register => {
            register(RegisterMode::Add, Some(Key(0)), needs(args.key, "--key, the key to have")?)
        }
        ReserveAction::Replace => {
            register(RegisterMode::Replace, args.key, needs(args.new_key, "--new-key, the key to have")?)
        }
        ReserveAction::Unregister => register(RegisterMode::Remove, own()?, Key(0)),
        ReserveAction::Reserve => Action::Reserve { key: own()?, kind: kind()? },
        ReserveAction::Release => Action::Release { key: own()?, kind: kind()? },
        ReserveAction::Clear => Action::Clear { key: own()? },
        ReserveAction::Preempt | ReserveAction::PreemptAbort => Action::Preempt {
            key: own()?,
            victim: needs(args.victim, "--victim, whose registrations to take away")?,
            kind: kind()?,
            abort: args.word == ReserveAction::PreemptAbort,
        },
    }))
}

/// Does it, then shows what holds.
pub fn reserve(args: &ReserveArgs) -> Result<Exit, Failure> {
    let claim = reservation_op(args)?;
    let mut initiator = create_initiator(Settings { isid: IsidChoice::Lasting, ..Settings::default() })?;
    let volume = initiator.open(&args.url)?;
    let asks = claim == ReservationOp::Report;
    let report = match initiator.run_reservation_op(volume, claim)? {
        Some(report) => Ok(report),
        None => initiator
            .run_reservation_op(volume, ReservationOp::Report)
            .map_err(Failure::from)
            .and_then(|report| report.ok_or_else(|| Failure::failed("the target reports no reservations"))),
    };
    // It was done, or answered, whatever becomes of the rest.
    let closed = initiator.close(volume);
    let report = match report {
        Err(why) if !asks => {
            let why = why.to_string();
            return Err(Failure::failed(format!(
                "the target accepted the command, but its state could not be read: {why}; run `report`"
            )));
        }
        other => other?,
    };
    print(&match args.json {
        true => json_text(&RemoteReservationReport::of(&report)),
        false => registrations_table(&report),
    })?;
    closed?;
    match (args.word, holder_by_other_path(&report)) {
        (ReserveAction::Release, Some(holder)) => Err(Failure::failed(format!(
            "the reservation is still held by {holder}, another port of this machine, and only that port can \
             release it; unregister through the path that reserved, or preempt its key"
        ))),
        _ => Ok(Exit::Success),
    }
}

/// Who holds the reservation, if this machine holds it by another path: a release by this one succeeds there and
/// does nothing (SPC-4 §5.9.11.2).
fn holder_by_other_path(report: &Reservations) -> Option<String> {
    report.held.filter(|kind| !kind.is_all_registrants())?;
    let held = |one: &&Registration| one.holds && !one.ours && one.kin == Some(true);
    report.registrations.iter().find(held).map(|one| registrant_name(&one.identity))
}

fn registrations_table(report: &Reservations) -> String {
    let held = report.held.map_or("none", reservation_type_name);
    let persists = match report.persists {
        Some(true) => ", survives a restart",
        Some(false) => ", ends with the target",
        None => "",
    };
    let mut text = format!("reservation {held} (generation {}{persists})\n", report.generation);
    for one in &report.registrations {
        let marks = match (one.holds, one.ours) {
            (true, true) => "  holds it, ours",
            (true, false) => "  holds it",
            (false, true) => "  ours",
            (false, false) => "",
        };
        text += &format!("{:#018x}  {}{marks}\n", one.key.0, registrant_name(&one.identity));
    }
    text
}

#[cfg(test)]
mod tests {
    use volume::Identity;

    use super::*;

    #[test]
    fn keys_are_numbers_of_64_bits() {
        assert_eq!(parse_key("0xabc1"), Ok(Key(0xabc1)));
        assert_eq!(parse_key("17"), Ok(Key(17)));
        assert!(
            parse_key("0").is_err() && parse_key("x").is_err() && parse_key("0x1ffffffffffffffff").is_err()
        );
    }

    #[test]
    fn a_release_that_left_the_reservation_to_another_port_of_this_machine_is_no_success() {
        let one = |ours, kin, holds| Registration {
            identity: Identity::Initiator { name: "iqn.x:a".into(), isid: [1; 6], port: volume::PortId(1) },
            key: Key(1),
            holds,
            ours,
            kin,
        };
        let held = |held, registrations| Reservations {
            generation: 1,
            persists: None,
            held,
            registrations,
            named: true,
            whole: true,
        };
        let (exclusive, all) =
            (Some(ReservationType::WriteExclusive), Some(ReservationType::WriteExclusiveAll));
        let port = vec![one(true, Some(true), false), one(false, Some(true), true)];
        assert_eq!(
            holder_by_other_path(&held(exclusive, port.clone())),
            Some("iqn.x:a,i,0x010101010101".to_owned())
        );
        assert_eq!(holder_by_other_path(&held(all, port)), None);
        let foreign = vec![one(true, Some(true), false), one(false, Some(false), true)];
        assert_eq!(
            holder_by_other_path(&held(exclusive, foreign)),
            None,
            "another host's is not ours to release"
        );
        assert_eq!(holder_by_other_path(&held(None, vec![one(true, Some(true), false)])), None);
    }

    #[test]
    fn every_type_has_its_word() {
        for one in ReservationTypeName::value_variants() {
            assert_eq!(
                one.to_possible_value().unwrap().get_name(),
                reservation_type_name(one.to_reservation_type())
            );
        }
    }
}
