//! How initiators and hosts prove themselves: methods, algorithms, credentials.

use std::sync::Arc;

use super::{Secret, Target};

/// Authentication that is not of one host.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Auth {
    /// Credentials of initiators whose host has none of its own; empty: such initiators need none.
    pub chap: Vec<Credentials>,
    /// Credentials for discovery sessions; empty: discovery needs none.
    pub discovery: Vec<Credentials>,
    /// AuthMethod values that are allowed where credentials exist; empty: [`AUTH_METHODS_DEFAULT`]. Their
    /// order means nothing: RFC 7143 §6.2.1 lets that of the initiator decide.
    pub methods: Vec<AuthMethod>,
    /// CHAP algorithms, most wanted first; empty: [`CHAP_ALGORITHMS_DEFAULT`].
    pub hashes: Vec<ChapAlgorithm>,
    /// An initiator that proves itself and does not ask us to do so is refused.
    pub mutual: bool,
    /// DH-HMAC-CHAP secret of NVMe hosts that have none of their own; `None`: such hosts need none.
    pub dhchap: Option<Arc<nvme::auth::DhchapSecret>>,
    /// The secret by which controllers prove themselves to NVMe hosts that have none of their own for that;
    /// `None`: to such hosts they cannot.
    pub dhchap_controller: Option<Arc<nvme::auth::DhchapSecret>>,
    /// By what NVMe hosts may prove themselves, most wanted first.
    pub proofs: nvme::auth::DhchapPolicy,
    /// NVMe hosts must prove themselves to the discovery service too.
    pub dhchap_discovery: bool,
    /// DH-HMAC-CHAP secret of NVMe hosts that ask the discovery service and have none of their own;
    /// `None`: [`Auth::dhchap`].
    pub dhchap_discovery_key: Option<Arc<nvme::auth::DhchapSecret>>,
    /// The key for TLS of NVMe hosts that have none of their own; `None`: such hosts have none.
    pub tls_key: Option<Arc<nvme::tls::ConfiguredPsk>>,
    /// How keys of TLS are derived, most likely first; empty: as the standard says.
    pub tls_derivations: Vec<nvme::tls::HkdfLabelFormat>,
}

impl Auth {
    /// The methods to offer to an initiator that has credentials.
    pub fn methods(&self) -> &[AuthMethod] {
        if self.methods.is_empty() { &AUTH_METHODS_DEFAULT } else { &self.methods }
    }

    /// The credentials of a target's initiators that have none of their own.
    pub fn shared_credentials<'a>(&'a self, target: &'a Target) -> &'a [Credentials] {
        target.auth.as_ref().map_or(&self.chap, |own| &own.chap)
    }

    /// The methods to offer to an initiator of a target.
    pub fn target_methods<'a>(&'a self, target: &'a Target) -> &'a [AuthMethod] {
        let own = target.auth.as_ref().map(|own| own.methods.as_slice());
        own.filter(|methods| !methods.is_empty()).unwrap_or_else(|| self.methods())
    }

    /// Whether an initiator of a target must ask it to prove itself too.
    pub fn demands_mutual(&self, target: &Target) -> bool {
        target.auth.as_ref().map_or(self.mutual, |own| own.mutual)
    }

    /// The CHAP algorithms to accept, from initiators of whom mutual authentication is demanded or not. MD5 is accepted
    /// from the former only where it is named.
    pub fn chap_algorithms(&self, demands_mutual: bool) -> &[ChapAlgorithm] {
        match (self.hashes.as_slice(), demands_mutual) {
            ([], false) => &CHAP_ALGORITHMS_DEFAULT,
            ([], true) => CHAP_ALGORITHMS_DEFAULT.split_last().map_or(&[], |(_md5, stronger)| stronger),
            (named, _) => named,
        }
    }
}

/// What initiators with credentials must use where the configuration says nothing.
pub const AUTH_METHODS_DEFAULT: [AuthMethod; 1] = [AuthMethod::Chap];

/// CHAP algorithms where the configuration says nothing: all, strongest first.
pub const CHAP_ALGORITHMS_DEFAULT: [ChapAlgorithm; 4] =
    [ChapAlgorithm::Sha3_256, ChapAlgorithm::Sha256, ChapAlgorithm::Sha1, ChapAlgorithm::Md5];

/// AuthMethod (RFC 7143 §12.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthMethod {
    /// Challenge handshake.
    Chap,
    /// No authentication.
    None,
}

/// A CHAP algorithm (numbers of the IANA registry "PPP Authentication Algorithms").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChapAlgorithm {
    /// 5
    Md5,
    /// 6
    Sha1,
    /// 7
    Sha256,
    /// 8
    Sha3_256,
}

/// A CHAP user, and optionally how the target proves itself to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// CHAP_N of the initiator.
    pub user: String,
    /// Its secret.
    pub secret: Secret,
    /// CHAP_N and secret of the target; initiators may then ask for mutual authentication.
    pub mutual: Option<(String, Secret)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_do_not_print() {
        let credentials = Credentials {
            user: "alice".into(),
            secret: Secret::new(b"correct horse".to_vec()),
            mutual: Some(("target".into(), Secret::new(b"battery staple".to_vec()))),
        };
        let shown = format!("{credentials:?}");
        assert!(shown.contains("alice"));
        assert!(!shown.contains("horse") && !shown.contains("staple"), "{shown}");
        assert!(!shown.contains("99"), "no bytes either: {shown}");
    }
}
