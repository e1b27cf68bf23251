//! Files and TCP ports, by landlock.

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, LandlockStatus, NetPort,
    PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError, Scope,
};
use std::path::{Path, PathBuf};

use crate::Policy;

/// The rights that this code knows: those of Linux 6.12 and before. Later ones are left as they are.
const ABI_KNOWN: ABI = ABI::V6;
/// Since then landlock has ports.
const ABI_OF_PORTS: u32 = ABI::V4 as u32;

/// Restricts this thread, and those that it starts. Gives the version of the kernel's interface, and whether ports are
/// restricted.
///
/// # Errors
/// Why nothing is restricted.
pub(crate) fn restrict_files(policy: &Policy) -> Result<(u32, bool), String> {
    let status = build_ruleset(policy)
        .and_then(RulesetCreated::restrict_self)
        .map_err(|why| format!("the kernel does not take the rules: {why}"))?;
    match status.landlock {
        LandlockStatus::NotEnabled => Err("it is not among the kernel's security modules (lsm=)".to_owned()),
        LandlockStatus::NotImplemented => Err("the kernel has none (Linux 5.13 and later have)".to_owned()),
        LandlockStatus::Available { effective_abi, kernel_abi } => {
            let abi = kernel_abi.and_then(|abi| u32::try_from(abi).ok()).unwrap_or(effective_abi as u32);
            Ok((abi, abi >= ABI_OF_PORTS))
        }
    }
}

fn build_ruleset(policy: &Policy) -> Result<RulesetCreated, RulesetError> {
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let write = read
        | AccessFs::WriteFile
        | AccessFs::Truncate
        | AccessFs::IoctlDev
        | AccessFs::MakeReg
        | AccessFs::MakeDir
        | AccessFs::RemoveFile
        | AccessFs::RemoveDir
        | AccessFs::Refer;
    let sockets = AccessFs::MakeSock | AccessFs::RemoveFile | AccessFs::ReadDir;
    let rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(ABI_KNOWN))?
        .handle_access(AccessNet::BindTcp)?;
    let rules = match policy.connect {
        Some(_) => rules.handle_access(AccessNet::ConnectTcp)?,
        None => rules,
    };
    // Processes outside: the daemon signals none.
    let mut rules = rules.scope(Scope::Signal)?.create()?;
    for (paths, access) in [
        (&policy.readable, read),
        (&policy.executable, read | AccessFs::Execute),
        (&policy.writable, write),
        (&policy.sockets, sockets),
    ] {
        for path in paths {
            rules = add_path(rules, path, access)?;
        }
    }
    for port in &policy.listen {
        rules = rules.add_rule(NetPort::new(*port, AccessNet::BindTcp))?;
    }
    for port in policy.connect.iter().flatten() {
        rules = rules.add_rule(NetPort::new(*port, AccessNet::ConnectTcp))?;
    }
    Ok(rules)
}

/// One that cannot be opened is left out: it is not there, or is not this user's to look at.
fn add_path(
    rules: RulesetCreated,
    path: &PathBuf,
    access: BitFlags<AccessFs>,
) -> Result<RulesetCreated, RulesetError> {
    let Ok(opened) = PathFd::new(path) else { return Ok(rules) };
    // The kernel refuses rights of directories for what is none.
    let access = if is_directory(path) { access } else { access & AccessFs::from_file(ABI_KNOWN) };
    rules.add_rule(PathBeneath::new(opened, access))
}

fn is_directory(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.is_dir())
}
