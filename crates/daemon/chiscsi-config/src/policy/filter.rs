//! Filters: primitives joined by `not`, `and`, `or` and `?:`, in this order of precedence. `and` may be
//! omitted. After `and` and `or` a value may stand alone: it refers to the previous primitive.
//!
//! For a connection that is served here, the source is the peer and the destination is this machine. It is a
//! passive open, and not a listening socket.

use std::net::IpAddr;

use shard::{Comparison, Condition, ConnectionEnd, ConnectionNumber, Network};

use super::Token;

/// Most levels of parentheses, negations and choices.
const DEPTH_MAX: usize = 32;

/// What a daemon can tell of a filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DaemonView {
    /// When it holds.
    Seen(Condition),
    /// It asks for this, which cannot be seen.
    Hidden(&'static str),
}

type Wrong = (usize, String);

/// Which ends a primitive is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ends {
    Source,
    Destination,
    Either,
    Both,
}

/// What a primitive is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PrimitiveSubject {
    Host,
    Net,
    Port,
    Version,
    Hidden(&'static str),
}

const ABOUT: [(&str, PrimitiveSubject); 8] = [
    ("host", PrimitiveSubject::Host),
    ("net", PrimitiveSubject::Net),
    ("port", PrimitiveSubject::Port),
    ("vers", PrimitiveSubject::Version),
    ("tos", PrimitiveSubject::Hidden("the TOS value")),
    ("dscp", PrimitiveSubject::Hidden("the DSCP value")),
    ("vlan", PrimitiveSubject::Hidden("the VLAN tag")),
    ("mark", PrimitiveSubject::Hidden("the mark")),
];

/// Reads a filter; `end` is where the line goes on behind it.
pub fn parse(tokens: &[Token<'_>], end: usize) -> Result<DaemonView, Wrong> {
    let mut parser = Parser { tokens, at: 0, end, before: None, hidden: None };
    let condition = parser.choice(0)?;
    if let Some(token) = parser.peek() {
        return Err((token.at, format!("\"{}\" is not expected here", token.text)));
    }
    Ok(match parser.hidden {
        Some(what) => DaemonView::Hidden(what),
        None => DaemonView::Seen(simple(condition)),
    })
}

struct Parser<'a> {
    tokens: &'a [Token<'a>],
    at: usize,
    end: usize,
    /// What the last primitive was about.
    before: Option<(Ends, PrimitiveSubject)>,
    hidden: Option<&'static str>,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<Token<'a>> {
        self.tokens.get(self.at).copied()
    }

    fn word(&self, ahead: usize) -> &'a str {
        self.tokens.get(self.at + ahead).map_or("", |token| token.text)
    }

    fn take(&mut self, words: &[&str]) -> bool {
        let is_there = words.contains(&self.word(0));
        self.at += usize::from(is_there);
        is_there
    }

    fn wrong<T>(&self, why: impl Into<String>) -> Result<T, Wrong> {
        Err((self.peek().map_or(self.end, |token| token.at), why.into()))
    }

    fn choice(&mut self, depth: usize) -> Result<Condition, Wrong> {
        if depth > DEPTH_MAX {
            return self.wrong(format!("more than {DEPTH_MAX} levels"));
        }
        let when = self.either(depth)?;
        if !self.take(&["?"]) {
            return Ok(when);
        }
        let then = self.choice(depth + 1)?;
        if !self.take(&[":"]) {
            return self.wrong("expected \":\" of a \"?:\"");
        }
        let otherwise = self.choice(depth + 1)?;
        Ok(Condition::IfElse(Box::new([when, then, otherwise])))
    }

    fn either(&mut self, depth: usize) -> Result<Condition, Wrong> {
        let mut list = vec![self.both(depth)?];
        while self.take(&["or", "||"]) {
            list.push(self.both(depth)?);
        }
        Ok(Condition::Any(list))
    }

    fn both(&mut self, depth: usize) -> Result<Condition, Wrong> {
        let mut list = vec![self.negation(depth)?];
        // A primitive right behind another is joined to it by "and".
        while self.take(&["and", "&&"]) || !matches!(self.word(0), "" | "or" | "||" | ")" | "?" | ":") {
            list.push(self.negation(depth)?);
        }
        Ok(Condition::All(list))
    }

    fn negation(&mut self, depth: usize) -> Result<Condition, Wrong> {
        if self.take(&["not", "!"]) {
            if depth > DEPTH_MAX {
                return self.wrong(format!("more than {DEPTH_MAX} levels"));
            }
            return Ok(Condition::Not(Box::new(self.negation(depth + 1)?)));
        }
        if self.take(&["("]) {
            let inner = self.choice(depth + 1)?;
            if !self.take(&[")"]) {
                return self.wrong("expected \")\"");
            }
            return Ok(inner);
        }
        self.primitive()
    }

    fn primitive(&mut self) -> Result<Condition, Wrong> {
        if self.take(&["any", "all", "-", "popen"]) {
            return Ok(Condition::Always);
        }
        if self.take(&["listen", "aopen"]) {
            return Ok(Condition::Any(Vec::new()));
        }
        let ends = self.ends();
        let about = ABOUT.iter().find(|(word, _)| *word == self.word(0)).map(|(_, about)| *about);
        let subject = match (ends, about, self.before) {
            (_, Some(about), _) => {
                self.at += 1;
                (ends.unwrap_or(Ends::Either), about)
            }
            (Some(_), None, _) => return self.wrong("expected host, net or port after src and dst"),
            (None, None, Some(before)) if is_value(self.word(0)) => before,
            (None, None, _) if self.word(0).is_empty() => return self.wrong("expected a filter"),
            (None, None, _) => {
                return self
                    .wrong(format!("\"{}\" is not a filter; for example: src host 192.0.2.1", self.word(0)));
            }
        };
        let is_of_an_end =
            matches!(subject.1, PrimitiveSubject::Host | PrimitiveSubject::Net | PrimitiveSubject::Port);
        if ends.is_some() && !is_of_an_end {
            return self.wrong("src and dst are allowed only before host, net and port");
        }
        self.before = Some(subject);
        self.value(subject)
    }

    /// `src`, `dst`, `src or dst`, `src and dst`.
    fn ends(&mut self) -> Option<Ends> {
        let end = |word| match word {
            "src" => Some(Ends::Source),
            "dst" | "dest" => Some(Ends::Destination),
            _ => None,
        };
        let first = end(self.word(0))?;
        self.at += 1;
        match (self.word(0), end(self.word(1))) {
            ("or" | "||", Some(second)) if second != first => {
                self.at += 2;
                Some(Ends::Either)
            }
            ("and" | "&&", Some(second)) if second != first => {
                self.at += 2;
                Some(Ends::Both)
            }
            _ => Some(first),
        }
    }

    fn value(&mut self, (ends, about): (Ends, PrimitiveSubject)) -> Result<Condition, Wrong> {
        match about {
            PrimitiveSubject::Host | PrimitiveSubject::Net => {
                let is_unequal = match self.order(false)? {
                    Comparison::Unequal => true,
                    Comparison::Equal => false,
                    _ => return self.wrong("addresses can only be compared with == and !="),
                };
                let network = if about == PrimitiveSubject::Net { self.network()? } else { self.host()? };
                let near = over(ends, |end| Condition::Near(end, network));
                Ok(if is_unequal { Condition::Not(Box::new(near)) } else { near })
            }
            PrimitiveSubject::Port => {
                let (mask, order, value) = self.number(0xffff, port)?;
                Ok(over(ends, |end| Condition::Number {
                    of: ConnectionNumber::Port(end),
                    mask,
                    order,
                    value,
                }))
            }
            PrimitiveSubject::Version => {
                let (mask, order, value) = self.number(255, |_| None)?;
                Ok(Condition::Number { of: ConnectionNumber::IpVersion, mask, order, value })
            }
            PrimitiveSubject::Hidden(what) => {
                self.number(u32::MAX, |_| None)?;
                self.hidden = Some(what);
                Ok(Condition::Always)
            }
        }
    }

    /// A comparison; `==` if there is none.
    fn order(&mut self, has_ranges: bool) -> Result<Comparison, Wrong> {
        let order = match self.word(0) {
            "==" | "=" => Comparison::Equal,
            "!=" => Comparison::Unequal,
            "<" if has_ranges => Comparison::Less,
            "<=" if has_ranges => Comparison::AtMost,
            ">" if has_ranges => Comparison::Greater,
            ">=" if has_ranges => Comparison::AtLeast,
            "<" | "<=" | ">" | ">=" => return self.wrong("addresses can only be compared with == and !="),
            _ => return Ok(Comparison::Equal),
        };
        self.at += 1;
        Ok(order)
    }

    /// `[& MASK] [ORDER] NUMBER`
    fn number(
        &mut self,
        most: u32,
        named: impl Fn(&str) -> Option<u32>,
    ) -> Result<(u32, Comparison, u32), Wrong> {
        let mask = if self.take(&["&"]) { self.integer(u32::MAX, |_| None)? } else { u32::MAX };
        let order = self.order(true)?;
        Ok((mask, order, self.integer(most, named)?))
    }

    fn integer(&mut self, most: u32, named: impl Fn(&str) -> Option<u32>) -> Result<u32, Wrong> {
        let word = self.word(0);
        let number = match word.strip_prefix("0x").or_else(|| word.strip_prefix("0X")) {
            Some(digits) => u32::from_str_radix(digits, 16).ok(),
            None => word.parse().ok().or_else(|| named(word)),
        };
        match number.filter(|number| *number <= most) {
            Some(number) => {
                self.at += 1;
                Ok(number)
            }
            None if word.is_empty() => self.wrong("expected a number"),
            None => self.wrong(format!("\"{word}\" is not a number up to {most} or a name of one")),
        }
    }

    fn host(&mut self) -> Result<Network, Wrong> {
        let word = self.word(0);
        match word.parse::<IpAddr>() {
            Ok(address) => {
                self.at += 1;
                let address = address.to_canonical();
                Ok(Network { address, prefix: if address.is_ipv4() { 32 } else { 128 } })
            }
            Err(_) => self.wrong(format!("\"{word}\" is not an IP address")),
        }
    }

    /// `ADDRESS/PREFIX` or `ADDRESS mask PREFIX`; an IPv4 address may lack its last numbers.
    fn network(&mut self) -> Result<Network, Wrong> {
        let word = self.word(0);
        let (address, prefix) = match word.split_once('/') {
            Some((address, prefix)) => (address, prefix),
            None if self.word(1) == "mask" => (word, self.word(2)),
            None => return self.wrong(format!("\"{word}\" is not a network such as 192.0.2.0/24")),
        };
        let parsed = whole(address).and_then(|address| {
            let bits = if address.is_ipv4() { 32 } else { 128 };
            let prefix = prefix.parse::<u8>().ok().filter(|prefix| *prefix <= bits)?;
            Some(Network { address, prefix })
        });
        match parsed {
            Some(network) => {
                self.at += if word.contains('/') { 1 } else { 3 };
                Ok(network)
            }
            None => self.wrong(format!("\"{word}\" is not a network such as 192.0.2.0/24")),
        }
    }
}

/// An address whose last numbers may be missing: 10.1 is 10.1.0.0.
fn whole(text: &str) -> Option<IpAddr> {
    if text.contains(':') {
        return text.parse().ok();
    }
    let missing = 3_usize.checked_sub(text.matches('.').count())?;
    format!("{text}{}", ".0".repeat(missing)).parse().ok()
}

fn over(ends: Ends, condition: impl Fn(ConnectionEnd) -> Condition) -> Condition {
    match ends {
        Ends::Source => condition(ConnectionEnd::Source),
        Ends::Destination => condition(ConnectionEnd::Destination),
        Ends::Either => {
            Condition::Any(vec![condition(ConnectionEnd::Source), condition(ConnectionEnd::Destination)])
        }
        Ends::Both => {
            Condition::All(vec![condition(ConnectionEnd::Source), condition(ConnectionEnd::Destination)])
        }
    }
}

/// Whether a word can be a value that stands alone.
fn is_value(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_digit()) || word.contains(':') || port(word).is_some()
}

/// The port of a service: those that policies of storage and its neighbours name, then `/etc/services`.
fn port(name: &str) -> Option<u32> {
    const KNOWN: [(&str, u32); 6] =
        [("iscsi-target", 3260), ("nvme", 4420), ("http", 80), ("https", 443), ("nfs", 2049), ("ssh", 22)];
    if let Some((_, port)) = KNOWN.iter().find(|(known, _)| *known == name) {
        return Some(*port);
    }
    if !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return None;
    }
    let services = std::fs::read_to_string("/etc/services").ok()?;
    services.lines().find_map(|line| {
        let mut words = line.split('#').next()?.split_whitespace();
        let (first, at) = (words.next()?, words.next()?);
        let port = at.strip_suffix("/tcp")?.parse().ok()?;
        (first == name || words.any(|alias| alias == name)).then_some(port)
    })
}

/// The same condition with what is certain taken out of it: nothing is `Any` of nothing, everything
/// `Always`.
fn simple(condition: Condition) -> Condition {
    let never = || Condition::Any(Vec::new());
    let is_never = |condition: &Condition| matches!(condition, Condition::Any(list) if list.is_empty());
    match condition {
        Condition::Not(inner) => match simple(*inner) {
            Condition::Always => never(),
            inner if is_never(&inner) => Condition::Always,
            inner => Condition::Not(Box::new(inner)),
        },
        Condition::All(list) => {
            let mut list: Vec<Condition> = list.into_iter().map(simple).collect();
            if list.iter().any(is_never) {
                return never();
            }
            list.retain(|one| *one != Condition::Always);
            match list.len() {
                0 => Condition::Always,
                1 => list.remove(0),
                _ => Condition::All(list),
            }
        }
        Condition::Any(list) => {
            let mut list: Vec<Condition> = list.into_iter().map(simple).collect();
            if list.contains(&Condition::Always) {
                return Condition::Always;
            }
            list.retain(|one| !is_never(one));
            if list.len() == 1 { list.remove(0) } else { Condition::Any(list) }
        }
        Condition::IfElse(three) => {
            let [when, then, otherwise] = (*three).map(simple);
            match when {
                Condition::Always => then,
                when if is_never(&when) => otherwise,
                when => Condition::IfElse(Box::new([when, then, otherwise])),
            }
        }
        Condition::Always | Condition::Near(..) | Condition::Number { .. } => condition,
    }
}
