//! Chooses the best method of attaching a volume on this machine.

use std::fmt;
use std::io;

use crate::{device_node, fuse, ublk};

/// A way of attaching a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// A block device of the kernel's ublk driver.
    Ublk,
    /// A file through FUSE, with a loop device over it where the system gives one.
    Fuse,
    /// A socket for NBD clients.
    Nbd,
    /// A disk for a virtual machine. Never chosen: it is for who asks for it.
    VhostUser,
}

impl Via {
    /// All ways, the best first.
    pub const ALL: [Via; 4] = [Via::Ublk, Via::Fuse, Via::Nbd, Via::VhostUser];

    /// What it is called on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Via::Ublk => "ublk",
            Via::Fuse => "fuse",
            Via::Nbd => "nbd",
            Via::VhostUser => "vhost-user",
        }
    }
}

impl fmt::Display for Via {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The best way, and why no better one.
#[derive(Debug)]
pub struct Choice {
    /// The way.
    pub via: Via,
    /// What would have been better, and what is in its way. For [`Via::Fuse`] itself: why there will be no
    /// loop device.
    pub passed_over: Vec<(Via, io::Error)>,
}

impl fmt::Display for Choice {
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
pub fn best() -> Choice {
    choose(ublk::available(), fuse::available(), loop_available())
}

fn choose(ublk: io::Result<()>, fuse: io::Result<()>, loops: io::Result<()>) -> Choice {
    let mut passed_over = Vec::new();
    match ublk {
        Ok(()) => return Choice { via: Via::Ublk, passed_over },
        Err(why) => passed_over.push((Via::Ublk, why)),
    }
    match fuse {
        Ok(()) => {
            passed_over.extend(loops.err().map(|why| (Via::Fuse, why)));
            Choice { via: Via::Fuse, passed_over }
        }
        Err(why) => {
            passed_over.push((Via::Fuse, why));
            Choice { via: Via::Nbd, passed_over }
        }
    }
}

fn loop_available() -> io::Result<()> {
    device_node::open(
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
        let say = |ublk, fuse, loops| choose(ublk, fuse, loops).to_string();
        assert_eq!(say(Ok(()), no("f"), no("l")), "ublk");
        assert_eq!(say(no("u"), Ok(()), Ok(())), "fuse; not ublk: u");
        assert_eq!(say(no("u"), Ok(()), no("l")), "fuse; not ublk: u; a file only, no loop device: l");
        assert_eq!(say(no("u"), no("f"), Ok(())), "nbd; not ublk: u; not fuse: f");
    }

    #[test]
    fn this_machine_has_a_best_way() {
        let choice = best();
        println!("{choice}");
        assert_eq!(choice.via == Via::Ublk, choice.passed_over.is_empty());
    }
}
