//! CHAP in this format: `"id":"secret"`, which side must authenticate, and which methods are allowed.

use config::{
    diagnostic::{Located, Sink},
    draft,
    plan::{Credentials, Secret},
};

use super::error::ValueError;

/// Fewest and most bytes of a secret, as the format has them.
const SECRET_BYTES_RANGE: std::ops::RangeInclusive<usize> = 6..=255;
/// Fewest bytes that RFC 7143 §9.2.1 allows on a network that is not encrypted.
const SECRET_BYTES_SAFE: usize = 12;

/// An id and a secret.
pub type ChapPair = (String, Secret);

/// Reads `"id":"secret"`. No message shows the secret.
pub fn parse_chap_pair(text: &str) -> Result<ChapPair, ValueError> {
    let form = "is \"id\":\"secret\", both in double quotes";
    let inner = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).ok_or(form)?;
    let (id, secret) = inner.split_once("\":\"").ok_or(form)?;
    let bad = |text: &str| text.contains([',', '"']) || text.chars().any(char::is_control);
    if id.is_empty() || id.len() > 255 || bad(id) {
        return Err(
            "has an id that is not 1 to 255 bytes without commas, quotes and control characters".into()
        );
    }
    if !SECRET_BYTES_RANGE.contains(&secret.len()) || bad(secret) {
        return Err(
            "has a secret that is not 6 to 255 bytes without commas, quotes and control characters".into()
        );
    }
    Ok((id.to_owned(), Secret::new(secret.as_bytes().to_vec())))
}

/// What is shown of a pair: its id.
pub fn redacted_pair(text: &str) -> String {
    match parse_chap_pair(text) {
        Ok((id, _)) => format!("\"{id}\":\"...\""),
        Err(_) => "...".to_owned(),
    }
}

/// What a block says of CHAP.
#[derive(Debug, Default)]
pub struct ChapSettings {
    /// `AuthMethod`: whether none is allowed, and whether CHAP is; `None`: it says nothing.
    pub methods: Option<(bool, bool)>,
    /// Whether the policy is Mutual.
    pub is_mutual: bool,
    /// Initiators.
    pub initiators: Vec<Located<ChapPair>>,
    /// The target.
    pub target: Option<Located<ChapPair>>,
}

impl ChapSettings {
    /// Whether CHAP is used at all: it is allowed, and there is somebody who could prove something.
    pub fn is_enabled(&self, usual: (bool, bool)) -> bool {
        self.methods.unwrap_or(usual).1 && !self.initiators.is_empty()
    }

    /// The credentials as the plan has them.
    pub fn credentials(&self, sink: &Sink) -> Vec<Credentials> {
        let mut list: Vec<Credentials> = Vec::new();
        for pair in &self.initiators {
            let (user, secret) = pair.value.clone();
            let mutual = self.target.as_ref().map(|target| target.value.clone());
            let one = Credentials { user, secret, mutual };
            let same = one.mutual.as_ref().is_some_and(|(_, secret)| *secret == one.secret);
            let conflict = list.iter().find_map(|other| draft::credential_conflict(other, &one));
            if let Some(why) = conflict.or_else(|| same.then(|| draft::SECRETS_DIFFER.to_owned())) {
                sink.note_error(&pair.at, format!("CHAP: {why}"));
            }
            list.push(one);
        }
        for pair in self.initiators.iter().chain(&self.target) {
            if pair.value.1.expose().len() < SECRET_BYTES_SAFE {
                let why = "the secret has fewer than 12 bytes: RFC 7143 §9.2.1 allows that only over an \
                           encrypted network";
                sink.note_warning(&pair.at, why);
            }
        }
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_stand_in_quotes_and_secrets_are_not_said_again() {
        let (id, secret) = parse_chap_pair("\"initiator_id1\":\"initiator_sec1\"").unwrap();
        assert_eq!((id.as_str(), secret.expose()), ("initiator_id1", &b"initiator_sec1"[..]));
        assert_eq!(redacted_pair("\"initiator_id1\":\"initiator_sec1\""), "\"initiator_id1\":\"...\"");
        assert_eq!(parse_chap_pair("\"a:b\":\"sec:ret\"").unwrap().0, "a:b");
        for text in [
            "",
            "id:secretsecret",
            "\"id\":secretsecret",
            "\"id\":\"short\"",
            "\"\":\"secretsecret\"",
            "\"id\":\"secret,secret\"",
            "\"id\"",
            "\"id\":\"secret\"secret\"",
            "\u{201c}id\u{201d}:\u{201c}secretsecret\u{201d}",
        ] {
            let said = parse_chap_pair(text).unwrap_err().to_string();
            assert!(
                !said.contains("secretsecret") && !redacted_pair(text).contains("secretsecret"),
                "{text}: {said}"
            );
        }
        assert!(parse_chap_pair(&format!("\"id\":\"{}\"", "x".repeat(256))).is_err());
    }
}
