//! Conditions on the two ends of a connection, in any combination: the filters of an offload policy.
//!
//! A condition is a tree. The parser of policies bounds its depth, so its evaluation costs no more than its
//! text.

use std::net::{IpAddr, SocketAddr};

use endpoint::AcceptedSocket;

use super::Network;

/// When a rule applies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Condition {
    /// In any case.
    #[default]
    Always,
    /// When the other does not.
    Not(Box<Condition>),
    /// When all of them do; an empty list always does.
    All(Vec<Condition>),
    /// When one of them does; an empty list never does.
    Any(Vec<Condition>),
    /// When the second does if the first does, else when the third does.
    IfElse(Box<[Condition; 3]>),
    /// When this end lies in the network.
    Near(ConnectionEnd, Network),
    /// When a number, masked, stands to a value as said.
    Number {
        /// Which number.
        of: ConnectionNumber,
        /// What is looked at of it.
        mask: u32,
        /// How it must stand to `value`.
        order: Comparison,
        /// To what.
        value: u32,
    },
}

/// An end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionEnd {
    /// The peer, which dialled.
    Source,
    /// We.
    Destination,
}

/// A number of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionNumber {
    /// The TCP port of an end.
    Port(ConnectionEnd),
    /// The version of IP: 4, also where an IPv4 address comes in IPv6 form, or 6.
    IpVersion,
}

/// A comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// `==`
    Equal,
    /// `!=`
    Unequal,
    /// `<`
    Less,
    /// `<=`
    AtMost,
    /// `>`
    Greater,
    /// `>=`
    AtLeast,
}

impl Condition {
    /// Whether it holds for a connection.
    pub fn matches(&self, by: &AcceptedSocket) -> bool {
        match self {
            Condition::Always => true,
            Condition::Not(other) => !other.matches(by),
            Condition::All(list) => list.iter().all(|one| one.matches(by)),
            Condition::Any(list) => list.iter().any(|one| one.matches(by)),
            Condition::IfElse(three) => {
                let [when, then, otherwise] = &**three;
                if when.matches(by) { then.matches(by) } else { otherwise.matches(by) }
            }
            Condition::Near(end, network) => network.contains(end.socket_addr_of(by).ip()),
            Condition::Number { of, mask, order, value } => order.compare(of.value_of(by) & mask, *value),
        }
    }
}

impl ConnectionEnd {
    fn socket_addr_of(self, by: &AcceptedSocket) -> SocketAddr {
        match self {
            ConnectionEnd::Source => by.peer,
            ConnectionEnd::Destination => by.local,
        }
    }
}

impl ConnectionNumber {
    fn value_of(self, by: &AcceptedSocket) -> u32 {
        match self {
            ConnectionNumber::Port(end) => end.socket_addr_of(by).port().into(),
            ConnectionNumber::IpVersion => match by.peer.ip().to_canonical() {
                IpAddr::V4(_) => 4,
                IpAddr::V6(_) => 6,
            },
        }
    }
}

impl Comparison {
    fn compare(self, number: u32, value: u32) -> bool {
        match self {
            Comparison::Equal => number == value,
            Comparison::Unequal => number != value,
            Comparison::Less => number < value,
            Comparison::AtMost => number <= value,
            Comparison::Greater => number > value,
            Comparison::AtLeast => number >= value,
        }
    }
}

#[cfg(test)]
mod tests {
    use endpoint::ListenerId;

    use super::*;

    fn by(peer: &str, local: &str) -> AcceptedSocket {
        AcceptedSocket {
            listener: ListenerId(0),
            peer: peer.parse().unwrap(),
            local: local.parse().unwrap(),
            cpu: None,
        }
    }

    fn near(end: ConnectionEnd, address: &str, prefix: u8) -> Condition {
        Condition::Near(end, Network { address: address.parse().unwrap(), prefix })
    }

    fn number(of: ConnectionNumber, order: Comparison, value: u32) -> Condition {
        Condition::Number { of, mask: u32::MAX, order, value }
    }

    #[test]
    fn each_condition_tells_its_connections_from_others() {
        let here = by("10.1.2.3:40000", "192.0.2.1:3260");
        let mapped = by("[::ffff:10.1.2.3]:40000", "[::ffff:192.0.2.1]:3260");
        let six = by("[2001:db8::1]:40000", "[2001:db8::2]:3260");
        for (condition, holds) in [
            (Condition::Always, [true, true, true]),
            (near(ConnectionEnd::Source, "10.0.0.0", 8), [true, true, false]),
            (near(ConnectionEnd::Destination, "10.0.0.0", 8), [false, false, false]),
            (near(ConnectionEnd::Destination, "2001:db8::", 32), [false, false, true]),
            (
                number(ConnectionNumber::Port(ConnectionEnd::Destination), Comparison::Equal, 3260),
                [true, true, true],
            ),
            (
                number(ConnectionNumber::Port(ConnectionEnd::Source), Comparison::Less, 1024),
                [false, false, false],
            ),
            (
                number(ConnectionNumber::Port(ConnectionEnd::Source), Comparison::AtLeast, 40_000),
                [true, true, true],
            ),
            (number(ConnectionNumber::IpVersion, Comparison::Equal, 4), [true, true, false]),
            (number(ConnectionNumber::IpVersion, Comparison::Greater, 4), [false, false, true]),
            (
                Condition::Not(Box::new(number(ConnectionNumber::IpVersion, Comparison::Equal, 6))),
                [true, true, false],
            ),
        ] {
            let said = [&here, &mapped, &six].map(|by| condition.matches(by));
            assert_eq!(said, holds, "{condition:?}");
        }
    }

    #[test]
    fn comparisons_and_masks() {
        for (order, holds) in [
            (Comparison::Equal, [false, true, false]),
            (Comparison::Unequal, [true, false, true]),
            (Comparison::Less, [true, false, false]),
            (Comparison::AtMost, [true, true, false]),
            (Comparison::Greater, [false, false, true]),
            (Comparison::AtLeast, [false, true, true]),
        ] {
            assert_eq!([9, 10, 11].map(|number| order.compare(number, 10)), holds, "{order:?}");
        }
        let low = Condition::Number {
            of: ConnectionNumber::Port(ConnectionEnd::Source),
            mask: 0xfc00,
            order: Comparison::Equal,
            value: 0,
        };
        assert!(low.matches(&by("10.0.0.1:1023", "10.0.0.2:1")));
        assert!(!low.matches(&by("10.0.0.1:1024", "10.0.0.2:1")));
    }

    #[test]
    fn combinations() {
        let (yes, no) = (|| Condition::Always, || Condition::Any(Vec::new()));
        let here = by("10.1.2.3:1", "10.1.2.4:2");
        let choice = |a, b, c| Condition::IfElse(Box::new([a, b, c])).matches(&here);
        assert!(choice(yes(), yes(), no()) && choice(no(), no(), yes()));
        assert!(!choice(yes(), no(), yes()) && !choice(no(), yes(), no()));
        assert!(Condition::All(vec![yes(), yes()]).matches(&here) && Condition::All(vec![]).matches(&here));
        assert!(!Condition::All(vec![yes(), no()]).matches(&here));
        assert!(
            Condition::Any(vec![no(), yes()]).matches(&here) && !Condition::Any(vec![no()]).matches(&here)
        );
    }
}
