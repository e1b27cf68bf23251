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
pub enum ParsedFilter {
    /// When it holds.
    Seen(Condition),
    /// It asks for this, which cannot be seen.
    Hidden(&'static str),
}

type SyntaxError = (usize, String);

/// Which ends a primitive is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndSelector {
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

const SUBJECTS: [(&str, PrimitiveSubject); 8] = [
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
pub fn parse_filter(tokens: &[Token<'_>], end: usize) -> Result<ParsedFilter, SyntaxError> {
    let mut parser = Parser { tokens, at: 0, end, before: None, hidden: None };
    let condition = parser.parse_conditional(0)?;
    if let Some(token) = parser.peek() {
        return Err((token.at, format!("\"{}\" is not expected here", token.text)));
    }
    Ok(match parser.hidden {
        Some(what) => ParsedFilter::Hidden(what),
        None => ParsedFilter::Seen(simplify(condition)),
    })
}

struct Parser<'a> {
    tokens: &'a [Token<'a>],
    at: usize,
    end: usize,
    /// What the last primitive was about.
    before: Option<(EndSelector, PrimitiveSubject)>,
    hidden: Option<&'static str>,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<Token<'a>> {
        self.tokens.get(self.at).copied()
    }

    fn word_ahead(&self, ahead: usize) -> &'a str {
        self.tokens.get(self.at + ahead).map_or("", |token| token.text)
    }

    fn take_word(&mut self, words: &[&str]) -> bool {
        let is_there = words.contains(&self.word_ahead(0));
        self.at += usize::from(is_there);
        is_there
    }

    fn fail<T>(&self, why: impl Into<String>) -> Result<T, SyntaxError> {
        Err((self.peek().map_or(self.end, |token| token.at), why.into()))
    }

    fn parse_conditional(&mut self, depth: usize) -> Result<Condition, SyntaxError> {
        if depth > DEPTH_MAX {
            return self.fail(format!("more than {DEPTH_MAX} levels"));
        }
        let when = self.parse_or(depth)?;
        if !self.take_word(&["?"]) {
            return Ok(when);
        }
        let then = self.parse_conditional(depth + 1)?;
        if !self.take_word(&[":"]) {
            return self.fail("expected \":\" of a \"?:\"");
        }
        let otherwise = self.parse_conditional(depth + 1)?;
        Ok(Condition::IfElse(Box::new([when, then, otherwise])))
    }

    fn parse_or(&mut self, depth: usize) -> Result<Condition, SyntaxError> {
        let mut list = vec![self.parse_and(depth)?];
        while self.take_word(&["or", "||"]) {
            list.push(self.parse_and(depth)?);
        }
        Ok(Condition::Any(list))
    }

    fn parse_and(&mut self, depth: usize) -> Result<Condition, SyntaxError> {
        let mut list = vec![self.parse_negation(depth)?];
        // A primitive right behind another is joined to it by "and".
        while self.take_word(&["and", "&&"])
            || !matches!(self.word_ahead(0), "" | "or" | "||" | ")" | "?" | ":")
        {
            list.push(self.parse_negation(depth)?);
        }
        Ok(Condition::All(list))
    }

    fn parse_negation(&mut self, depth: usize) -> Result<Condition, SyntaxError> {
        if self.take_word(&["not", "!"]) {
            if depth > DEPTH_MAX {
                return self.fail(format!("more than {DEPTH_MAX} levels"));
            }
            return Ok(Condition::Not(Box::new(self.parse_negation(depth + 1)?)));
        }
        if self.take_word(&["("]) {
            let inner = self.parse_conditional(depth + 1)?;
            if !self.take_word(&[")"]) {
                return self.fail("expected \")\"");
            }
            return Ok(inner);
        }
        self.parse_primitive()
    }

    fn parse_primitive(&mut self) -> Result<Condition, SyntaxError> {
        if self.take_word(&["any", "all", "-", "popen"]) {
            return Ok(Condition::Always);
        }
        if self.take_word(&["listen", "aopen"]) {
            return Ok(Condition::Any(Vec::new()));
        }
        let ends = self.parse_ends();
        let about = SUBJECTS.iter().find(|(word, _)| *word == self.word_ahead(0)).map(|(_, about)| *about);
        let subject = match (ends, about, self.before) {
            (_, Some(about), _) => {
                self.at += 1;
                (ends.unwrap_or(EndSelector::Either), about)
            }
            (Some(_), None, _) => return self.fail("expected host, net or port after src and dst"),
            (None, None, Some(before)) if is_bare_value(self.word_ahead(0)) => before,
            (None, None, _) if self.word_ahead(0).is_empty() => return self.fail("expected a filter"),
            (None, None, _) => {
                return self.fail(format!(
                    "\"{}\" is not a filter; for example: src host 192.0.2.1",
                    self.word_ahead(0)
                ));
            }
        };
        let is_of_an_end =
            matches!(subject.1, PrimitiveSubject::Host | PrimitiveSubject::Net | PrimitiveSubject::Port);
        if ends.is_some() && !is_of_an_end {
            return self.fail("src and dst are allowed only before host, net and port");
        }
        self.before = Some(subject);
        self.parse_value(subject)
    }

    /// `src`, `dst`, `src or dst`, `src and dst`.
    fn parse_ends(&mut self) -> Option<EndSelector> {
        let end = |word| match word {
            "src" => Some(EndSelector::Source),
            "dst" | "dest" => Some(EndSelector::Destination),
            _ => None,
        };
        let first = end(self.word_ahead(0))?;
        self.at += 1;
        match (self.word_ahead(0), end(self.word_ahead(1))) {
            ("or" | "||", Some(second)) if second != first => {
                self.at += 2;
                Some(EndSelector::Either)
            }
            ("and" | "&&", Some(second)) if second != first => {
                self.at += 2;
                Some(EndSelector::Both)
            }
            _ => Some(first),
        }
    }

    fn parse_value(
        &mut self,
        (ends, about): (EndSelector, PrimitiveSubject),
    ) -> Result<Condition, SyntaxError> {
        match about {
            PrimitiveSubject::Host | PrimitiveSubject::Net => {
                let is_unequal = match self.parse_comparison(false)? {
                    Comparison::Unequal => true,
                    Comparison::Equal => false,
                    _ => return self.fail("addresses can only be compared with == and !="),
                };
                let network =
                    if about == PrimitiveSubject::Net { self.parse_network()? } else { self.parse_host()? };
                let near = for_ends(ends, |end| Condition::Near(end, network));
                Ok(if is_unequal { Condition::Not(Box::new(near)) } else { near })
            }
            PrimitiveSubject::Port => {
                let (mask, order, value) = self.parse_number_test(0xffff, service_port)?;
                Ok(for_ends(ends, |end| Condition::Number {
                    of: ConnectionNumber::Port(end),
                    mask,
                    order,
                    value,
                }))
            }
            PrimitiveSubject::Version => {
                let (mask, order, value) = self.parse_number_test(255, |_| None)?;
                Ok(Condition::Number { of: ConnectionNumber::IpVersion, mask, order, value })
            }
            PrimitiveSubject::Hidden(what) => {
                self.parse_number_test(u32::MAX, |_| None)?;
                self.hidden = Some(what);
                Ok(Condition::Always)
            }
        }
    }

    /// A comparison; `==` if there is none.
    fn parse_comparison(&mut self, has_ranges: bool) -> Result<Comparison, SyntaxError> {
        let order = match self.word_ahead(0) {
            "==" | "=" => Comparison::Equal,
            "!=" => Comparison::Unequal,
            "<" if has_ranges => Comparison::Less,
            "<=" if has_ranges => Comparison::AtMost,
            ">" if has_ranges => Comparison::Greater,
            ">=" if has_ranges => Comparison::AtLeast,
            "<" | "<=" | ">" | ">=" => return self.fail("addresses can only be compared with == and !="),
            _ => return Ok(Comparison::Equal),
        };
        self.at += 1;
        Ok(order)
    }

    /// `[& MASK] [ORDER] NUMBER`
    fn parse_number_test(
        &mut self,
        most: u32,
        named: impl Fn(&str) -> Option<u32>,
    ) -> Result<(u32, Comparison, u32), SyntaxError> {
        let mask = if self.take_word(&["&"]) { self.parse_integer(u32::MAX, |_| None)? } else { u32::MAX };
        let order = self.parse_comparison(true)?;
        Ok((mask, order, self.parse_integer(most, named)?))
    }

    fn parse_integer(&mut self, most: u32, named: impl Fn(&str) -> Option<u32>) -> Result<u32, SyntaxError> {
        let word = self.word_ahead(0);
        let number = match word.strip_prefix("0x").or_else(|| word.strip_prefix("0X")) {
            Some(digits) => u32::from_str_radix(digits, 16).ok(),
            None => word.parse().ok().or_else(|| named(word)),
        };
        match number.filter(|number| *number <= most) {
            Some(number) => {
                self.at += 1;
                Ok(number)
            }
            None if word.is_empty() => self.fail("expected a number"),
            None => self.fail(format!("\"{word}\" is not a number up to {most} or a name of one")),
        }
    }

    fn parse_host(&mut self) -> Result<Network, SyntaxError> {
        let word = self.word_ahead(0);
        match word.parse::<IpAddr>() {
            Ok(address) => {
                self.at += 1;
                let address = address.to_canonical();
                Ok(Network { address, prefix: if address.is_ipv4() { 32 } else { 128 } })
            }
            Err(_) => self.fail(format!("\"{word}\" is not an IP address")),
        }
    }

    /// `ADDRESS/PREFIX` or `ADDRESS mask PREFIX`; an IPv4 address may lack its last numbers.
    fn parse_network(&mut self) -> Result<Network, SyntaxError> {
        let word = self.word_ahead(0);
        let (address, prefix) = match word.split_once('/') {
            Some((address, prefix)) => (address, prefix),
            None if self.word_ahead(1) == "mask" => (word, self.word_ahead(2)),
            None => return self.fail(format!("\"{word}\" is not a network such as 192.0.2.0/24")),
        };
        let parsed = pad_ipv4(address).and_then(|address| {
            let bits = if address.is_ipv4() { 32 } else { 128 };
            let prefix = prefix.parse::<u8>().ok().filter(|prefix| *prefix <= bits)?;
            Some(Network { address, prefix })
        });
        match parsed {
            Some(network) => {
                self.at += if word.contains('/') { 1 } else { 3 };
                Ok(network)
            }
            None => self.fail(format!("\"{word}\" is not a network such as 192.0.2.0/24")),
        }
    }
}

/// An address whose last numbers may be missing: 10.1 is 10.1.0.0.
fn pad_ipv4(text: &str) -> Option<IpAddr> {
    if text.contains(':') {
        return text.parse().ok();
    }
    let missing = 3_usize.checked_sub(text.matches('.').count())?;
    format!("{text}{}", ".0".repeat(missing)).parse().ok()
}

fn for_ends(ends: EndSelector, condition: impl Fn(ConnectionEnd) -> Condition) -> Condition {
    match ends {
        EndSelector::Source => condition(ConnectionEnd::Source),
        EndSelector::Destination => condition(ConnectionEnd::Destination),
        EndSelector::Either => {
            Condition::Any(vec![condition(ConnectionEnd::Source), condition(ConnectionEnd::Destination)])
        }
        EndSelector::Both => {
            Condition::All(vec![condition(ConnectionEnd::Source), condition(ConnectionEnd::Destination)])
        }
    }
}

/// Whether a word can be a value that stands alone.
fn is_bare_value(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_digit()) || word.contains(':') || service_port(word).is_some()
}

/// The port of a service: those that policies of storage and its neighbours name, then `/etc/services`.
fn service_port(name: &str) -> Option<u32> {
    const KNOWN_SERVICES: [(&str, u32); 6] =
        [("iscsi-target", 3260), ("nvme", 4420), ("http", 80), ("https", 443), ("nfs", 2049), ("ssh", 22)];
    if let Some((_, port)) = KNOWN_SERVICES.iter().find(|(known, _)| *known == name) {
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
fn simplify(condition: Condition) -> Condition {
    let never = || Condition::Any(Vec::new());
    let is_never = |condition: &Condition| matches!(condition, Condition::Any(list) if list.is_empty());
    match condition {
        Condition::Not(inner) => match simplify(*inner) {
            Condition::Always => never(),
            inner if is_never(&inner) => Condition::Always,
            inner => Condition::Not(Box::new(inner)),
        },
        Condition::All(list) => {
            let mut list: Vec<Condition> = list.into_iter().map(simplify).collect();
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
            let mut list: Vec<Condition> = list.into_iter().map(simplify).collect();
            if list.contains(&Condition::Always) {
                return Condition::Always;
            }
            list.retain(|one| !is_never(one));
            if list.len() == 1 { list.remove(0) } else { Condition::Any(list) }
        }
        Condition::IfElse(three) => {
            let [when, then, otherwise] = (*three).map(simplify);
            match when {
                Condition::Always => then,
                when if is_never(&when) => otherwise,
                when => Condition::IfElse(Box::new([when, then, otherwise])),
            }
        }
        Condition::Always | Condition::Near(..) | Condition::Number { .. } => condition,
    }
}
