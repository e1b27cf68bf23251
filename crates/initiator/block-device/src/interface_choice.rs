//! Chooses the best method of attaching a volume on this machine.

use std::fmt;
use std::io;

use crate::{device_node, fuse, ublk};

/// A way of attaching a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceInterface {
    /// A block device of the kernel's ublk driver.
    Ublk,
    /// A file through FUSE, with a loop device over it where the system gives one.
    Fuse,
    /// A socket for NBD clients.
    Nbd,
    /// A disk for a virtual machine. Never chosen: it is for who asks for it.
    VhostUser,
}

impl DeviceInterface {
    /// All ways, the best first.
    pub const ALL: [DeviceInterface; 4] =
        [DeviceInterface::Ublk, DeviceInterface::Fuse, DeviceInterface::Nbd, DeviceInterface::VhostUser];

    /// What it is called on the command line.
    pub fn cli_name(self) -> &'static str {
        match self {
            DeviceInterface::Ublk => "ublk",
            DeviceInterface::Fuse => "fuse",
            DeviceInterface::Nbd => "nbd",
            DeviceInterface::VhostUser => "vhost-user",
        }
    }
}

impl fmt::Display for DeviceInterface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.cli_name())
    }
}

/// The best way, and why no better one.
#[derive(Debug)]
pub struct InterfaceChoice {
    /// The way.
    pub via: DeviceInterface,
    /// What would have been better, and what is in its way. For [`DeviceInterface::Fuse`] itself: why there will be no
    /// loop device.
    pub passed_over: Vec<(DeviceInterface, io::Error)>,
}

impl fmt::Display for InterfaceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.via)?;
        for (via, why) in &self.passed_over {
            match *via == self.via {
                true => write!(f, "; a file only, no loop device: {why}")?,
                false => write!(f, "; not {via}: {why}")?,
            }
        }
        Ok(())
    }
}

/// The best way that this machine lets this process take: ublk, else FUSE with a loop device, else FUSE's
/// file alone, else an NBD socket, which always can be had.
pub fn choose_best_interface() -> InterfaceChoice {
    choose_from_probes(ublk::check_available(), fuse::check_available(), probe_loop_devices())
}

fn choose_from_probes(ublk: io::Result<()>, fuse: io::Result<()>, loops: io::Result<()>) -> InterfaceChoice {
    let mut passed_over = Vec::new();
    match ublk {
        Ok(()) => return InterfaceChoice { via: DeviceInterface::Ublk, passed_over },
        Err(why) => passed_over.push((DeviceInterface::Ublk, why)),
    }
    match fuse {
        Ok(()) => {
            passed_over.extend(loops.err().map(|why| (DeviceInterface::Fuse, why)));
            InterfaceChoice { via: DeviceInterface::Fuse, passed_over }
        }
        Err(why) => {
            passed_over.push((DeviceInterface::Fuse, why));
            InterfaceChoice { via: DeviceInterface::Nbd, passed_over }
        }
    }
}

fn probe_loop_devices() -> io::Result<()> {
    device_node::check_openable(
        "/dev/loop-control",
        "the kernel has no loop devices, or this container has no access to them",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_that_works_is_chosen_and_the_others_are_explained() {
        let no = |why: &str| Err(io::Error::other(why.to_owned()));
        let say = |ublk, fuse, loops| choose_from_probes(ublk, fuse, loops).to_string();
        assert_eq!(say(Ok(()), no("f"), no("l")), "ublk");
        assert_eq!(say(no("u"), Ok(()), Ok(())), "fuse; not ublk: u");
        assert_eq!(say(no("u"), Ok(()), no("l")), "fuse; not ublk: u; a file only, no loop device: l");
        assert_eq!(say(no("u"), no("f"), Ok(())), "nbd; not ublk: u; not fuse: f");
    }

    #[test]
    fn this_machine_has_a_best_way() {
        let choice = choose_best_interface();
        println!("{choice}");
        assert_eq!(choice.via == DeviceInterface::Ublk, choice.passed_over.is_empty());
    }
}
