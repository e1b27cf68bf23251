//! Identities of PSKs, and keys: what is read is written as it was, and an identity has a key only under its own digest.

#![no_main]

use libfuzzer_sys::fuzz_target;
use nvme::auth::DhchapSecret;
use nvme::tls::{ConfiguredPsk, HkdfLabelFormat, PskIdentity, IdentityVersion};

const KEY: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";

fuzz_target!(|data: &[u8]| {
    if let Ok(text) = std::str::from_utf8(data) {
        if let Ok(secret) = DhchapSecret::parse(text) {
            assert_eq!(&**secret.to_text(), text.trim_ascii());
        }
        if let Ok(key) = ConfiguredPsk::parse(text) {
            assert_eq!(&**key.to_text(), text.trim_ascii());
        }
    }
    let Ok(identity) = PskIdentity::parse(data) else { return };
    assert_eq!(identity.to_string().as_bytes(), data);
    let key = ConfiguredPsk::parse(KEY).unwrap();
    let retained = key.derive_retained(&identity.host, HkdfLabelFormat::Standard);
    let found = retained.tls_psk(&identity);
    let own = retained.psk_identity(IdentityVersion::One, identity.suite, &identity.host, &identity.subsystem);
    if identity.version() == IdentityVersion::One && found.is_some() {
        let own = own.expect("its names have an identity");
        assert_eq!(own.to_string()[8..], identity.to_string()[8..]);
    }
});
