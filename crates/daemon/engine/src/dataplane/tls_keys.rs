//! The keys of hosts that use TLS: which one goes with the identity that a host offers.

use std::{sync::Arc, time::Instant};

use config::plan::Host;
use nvme::tls::{ConfiguredPsk, HkdfLabelFormat, PskIdentity, PskKind};
use tls::{Psk, PskLookup, ServerContext};

use super::{exports::FixedSettings, generated_psks::GeneratedPsks};
use process::log::area;

/// Configured keys: each of the hosts of these names, then that of all others; and generated PSKs.
struct HostKeys {
    own: Vec<(Vec<String>, Arc<ConfiguredPsk>)>,
    common: Option<Arc<ConfiguredPsk>>,
    /// Never empty.
    derivations: Vec<HkdfLabelFormat>,
    generated: GeneratedPsks,
}

impl PskLookup for HostKeys {
    fn find_psk(&self, identity: &[u8]) -> Option<Psk> {
        let identity = PskIdentity::parse(identity).ok()?;
        if identity.kind == PskKind::Generated {
            return self.generated.find(Instant::now(), &identity);
        }
        let host = identity.host.as_str();
        let own = self.own.iter().find(|(names, _)| names.iter().any(|name| name == host));
        let key = own.map(|(_, key)| key).or(self.common.as_ref())?;
        let mut psks = self
            .derivations
            .iter()
            .filter_map(|derivation| key.derive_retained(&identity.host, *derivation).tls_psk(&identity));
        let psk = psks.next()?;
        Some(Psk::new(psk.suite().number(), psk.expose()))
    }
}

impl FixedSettings {
    /// What TLS handshakes go by; `None`: no host has a key or can generate one, or OpenSSL cannot be used, which the log
    /// is told.
    pub(super) fn tls_context(&self) -> Option<ServerContext> {
        let auth = self.auth();
        let own = |host: &Host| Some((host.nqns.clone(), host.tls_key.clone()?));
        let own: Vec<_> = self.hosts().iter().filter_map(own).collect();
        let common = auth.tls_key.clone();
        let generates = auth.dhchap.is_some() || self.hosts().iter().any(|host| host.dhchap.is_some());
        let is_offered = self.portals().iter().any(|portal| portal.tls != shard::TlsMode::Off);
        if own.is_empty() && common.is_none() && !(generates && is_offered) {
            return None;
        }
        let mut derivations = auth.tls_derivations.clone();
        if derivations.is_empty() {
            derivations.push(HkdfLabelFormat::default());
        }
        let context = ServerContext::new(Arc::new(HostKeys {
            own,
            common,
            derivations,
            generated: self.generated_psks().clone(),
        }));
        context.inspect_err(|why| tracing::error!(target: area::NVME, %why, "hosts cannot use TLS")).ok()
    }
}

#[cfg(test)]
mod tests {
    use nvme::{
        Nqn,
        tls::{CipherSuite, IdentityVersion},
    };

    use super::*;

    const KEY: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
    const OTHER: &str =
        "NVMeTLSkey-1:02:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwP/w0S89ELi3W2LxIcLXVsDn8kXZQ==:";

    fn key(text: &str) -> Arc<ConfiguredPsk> {
        Arc::new(ConfiguredPsk::parse(text).unwrap())
    }

    fn offered(text: &str, host: &str, derivation: HkdfLabelFormat, version: IdentityVersion) -> Vec<u8> {
        let (key, host) = (key(text), Nqn::parse(host).unwrap());
        let subsystem = Nqn::parse("nqn.s").unwrap();
        let suite = CipherSuite::Aes128GcmSha256;
        let identity =
            key.derive_retained(&host, derivation).psk_identity(version, suite, &host, &subsystem).unwrap();
        identity.to_string().into_bytes()
    }

    #[test]
    fn a_host_has_its_own_key_or_the_common_one_and_a_derivation_that_is_allowed() {
        let keys = |derivations: &[HkdfLabelFormat]| HostKeys {
            own: vec![(vec!["nqn.a".to_owned()], key(KEY))],
            common: Some(key(OTHER)),
            derivations: derivations.to_vec(),
            generated: GeneratedPsks::default(),
        };
        let one = IdentityVersion::One;
        let standard = keys(&[HkdfLabelFormat::Standard]);
        let both = keys(&[HkdfLabelFormat::Standard, HkdfLabelFormat::Compat]);
        for (host, own, other) in [("nqn.a", KEY, OTHER), ("nqn.b", OTHER, KEY)] {
            assert!(standard.find_psk(&offered(own, host, HkdfLabelFormat::Standard, one)).is_some());
            assert!(standard.find_psk(&offered(other, host, HkdfLabelFormat::Standard, one)).is_none());
            assert!(standard.find_psk(&offered(own, host, HkdfLabelFormat::Compat, one)).is_none());
            assert!(both.find_psk(&offered(own, host, HkdfLabelFormat::Compat, one)).is_some());
        }
        let zero = offered(KEY, "nqn.a", HkdfLabelFormat::Standard, IdentityVersion::Zero);
        assert!(standard.find_psk(&zero).is_some());
        assert!(
            HostKeys { common: None, ..keys(&[HkdfLabelFormat::Standard]) }
                .find_psk(&offered(OTHER, "nqn.b", HkdfLabelFormat::Standard, one))
                .is_none()
        );
        assert!(standard.find_psk(b"Client_identity").is_none());
        assert!(standard.find_psk(b"NVMe0G01 nqn.a nqn.s").is_none());
        let generated = format!("NVMe1G02 nqn.a nqn.s {:064}", 7);
        let identity = PskIdentity::parse(generated.as_bytes()).unwrap();
        standard.generated.add(Instant::now(), identity.clone(), Psk::new([0x13, 2], &[3; 48]));
        assert_eq!(standard.find_psk(generated.as_bytes()).unwrap().suite(), [0x13, 2]);
        standard.generated.revoke(Instant::now(), &identity);
        assert!(standard.find_psk(generated.as_bytes()).is_none());
    }
}
