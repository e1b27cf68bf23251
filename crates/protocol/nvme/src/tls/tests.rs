use proptest::prelude::*;

use super::*;
use crate::Nqn;
use crate::key_interchange::KeyFlaw;

/// Keys and identities that libnvme's own tests expect (test/psk.c).
const KEY: [u8; 48] = [
    0x55, 0x12, 0xdb, 0xb6, 0x73, 0x7d, 0x01, 0x06, 0xf6, 0x59, 0x75, 0xb7, 0x73, 0xdf, 0xb0, 0x11, 0xff,
    0xc3, 0x44, 0xbc, 0xf4, 0x42, 0xe2, 0xdd, 0x6d, 0x8b, 0xc4, 0x87, 0x0b, 0x5d, 0x5b, 0x03, 0xff, 0xc3,
    0x44, 0xbc, 0xf4, 0x42, 0xe2, 0xdd, 0x6d, 0x8b, 0xc4, 0x87, 0x0b, 0x5d, 0x5b, 0x03,
];
const TEXT_32: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
const TEXT_48: &str =
    "NVMeTLSkey-1:02:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwP/w0S89ELi3W2LxIcLXVsDn8kXZQ==:";

fn nqn(text: &str) -> Nqn {
    Nqn::parse(text).unwrap()
}

fn names() -> (Nqn, Nqn) {
    (nqn("nqn.psk-test-host"), nqn("nqn.psk-test-subsys"))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn keys_are_read_and_written_as_libnvme_does() {
    for (text, len, transform, suite) in [
        (TEXT_32, 32, Some(Hash::Sha256), CipherSuite::Aes128GcmSha256),
        (TEXT_48, 48, Some(Hash::Sha384), CipherSuite::Aes256GcmSha384),
        (&TEXT_32.replace(":01:", ":00:"), 32, None, CipherSuite::Aes128GcmSha256),
        (&TEXT_48.replace(":02:", ":00:"), 48, None, CipherSuite::Aes256GcmSha384),
    ] {
        let key = ConfiguredPsk::parse(&format!("\n{text} ")).unwrap();
        assert_eq!((key.len(), key.transform(), key.default_suite()), (len, transform, suite));
        assert_eq!(key.bytes[..], KEY[..len]);
        assert_eq!(*key.to_text(), text);
    }
}

#[test]
fn identities_of_version_1_are_those_of_libnvme() {
    let (host, subsystem) = names();
    let rows = [
        (TEXT_32, HkdfLabelFormat::Standard, "NVMe1R01", "iSbjiStwJ/1TrTvDlt2fjFmzvsytOJelidNnA+X5lEU="),
        (
            TEXT_48,
            HkdfLabelFormat::Standard,
            "NVMe1R02",
            "QhW2+Rp6RzHlNtCslyRxMnwJ11tKKhz8JCAQpQ+XUD8f9td1VeH5h53yz2wKJG1a",
        ),
        (TEXT_32, HkdfLabelFormat::Compat, "NVMe1R01", "66GuqV08TsAGII39teWUfwQwizjv06Jy8jOcX3NAAzM="),
        (
            TEXT_48,
            HkdfLabelFormat::Compat,
            "NVMe1R02",
            "RsKmYJ3nAn1ApjjMloJFbAkLPivONDAX/xW327YBUsn2eGShXSjCZvBaOxscLqmz",
        ),
    ];
    for (text, derivation, form, digest) in rows {
        let key = ConfiguredPsk::parse(text).unwrap();
        let identity = key
            .derive_retained(&host, derivation)
            .psk_identity(IdentityVersion::One, key.default_suite(), &host, &subsystem)
            .unwrap();
        assert_eq!(identity.to_string(), format!("{form} {host} {subsystem} {digest}"));
    }
}

/// Computed by Python's hmac from RFC 5869 and RFC 8446, step by step.
#[test]
fn tls_psks_are_those_of_an_independent_computation() {
    let (host, subsystem) = names();
    let psk = |text: &str, version, derivation| {
        let key = ConfiguredPsk::parse(text).unwrap();
        let retained = key.derive_retained(&host, derivation);
        let identity = retained.psk_identity(version, key.default_suite(), &host, &subsystem).unwrap();
        let psk = retained.tls_psk(&identity).unwrap();
        assert_eq!(psk.suite(), key.default_suite());
        hex(psk.expose())
    };
    let rows = [
        (
            TEXT_32,
            IdentityVersion::Zero,
            HkdfLabelFormat::Standard,
            "05c6503551ad136e6ee32e6eeb3f6d500b69701d84ec71e328f65c7f51566f68",
        ),
        (
            TEXT_32,
            IdentityVersion::Zero,
            HkdfLabelFormat::Compat,
            "09fb1983ac6d6d0353e7cae4f23daddd651c367fa347c59d9cf6936f5a83eafb",
        ),
        (
            TEXT_32,
            IdentityVersion::One,
            HkdfLabelFormat::Standard,
            "8fc3c0badfd4c0c66fa3ca33aadd0314f85536cc9bc47338b60f3e6e563786ca",
        ),
        (
            TEXT_32,
            IdentityVersion::One,
            HkdfLabelFormat::Compat,
            "b9f5ab2a41ba6e72a23a12066302a2f775fa6c0942c8e0b18ca8ac07edf305e2",
        ),
        (
            TEXT_48,
            IdentityVersion::Zero,
            HkdfLabelFormat::Standard,
            "f42ba63824cdfe421914c582921f85b5b5b7e2d4df084caeedc9be20b212e8bb0fe8a23e9d59a1c8fc6449da4970a78d",
        ),
        (
            TEXT_48,
            IdentityVersion::Zero,
            HkdfLabelFormat::Compat,
            "2ee4754186a625b28a3936ef4a40d839c3ad958b2e017562ee07e2501f172ce999dc9c29033ea7ee33f814f192c13f47",
        ),
        (
            TEXT_48,
            IdentityVersion::One,
            HkdfLabelFormat::Standard,
            "a2b2f943f479fc682555cec89857c80ed004ce92f32a973d5764155bb7e36b17a85368a0666d250afac9282dda2e62ca",
        ),
        (
            TEXT_48,
            IdentityVersion::One,
            HkdfLabelFormat::Compat,
            "fcefe2e2a2e682b1447dcabf1ec268f78f08c63cd075753abcc8bda2c5c34d48d3014aa8d76ad80107e4f5c9f27e2149",
        ),
    ];
    for (text, version, derivation, expected) in rows {
        assert_eq!(psk(text, version, derivation), expected, "{text} {version:?} {derivation:?}");
    }
}

#[test]
fn a_key_is_of_one_host_one_subsystem_one_suite() {
    let (host, subsystem) = names();
    let key = ConfiguredPsk::parse(TEXT_32).unwrap();
    let retained = key.derive_retained(&host, HkdfLabelFormat::Standard);
    let psk = |retained: &RetainedPsk, version, suite, subsystem: &Nqn| {
        let identity = retained.psk_identity(version, suite, &host, subsystem).unwrap();
        hex(retained.tls_psk(&identity).unwrap().expose())
    };
    let (mut all, elsewhere) = (Vec::new(), nqn("nqn.other"));
    for version in [IdentityVersion::Zero, IdentityVersion::One] {
        for suite in CipherSuite::ALL {
            all.push(psk(&retained, version, suite, &subsystem));
            all.push(psk(&retained, version, suite, &elsewhere));
            let compat = key.derive_retained(&host, HkdfLabelFormat::Compat);
            all.push(psk(&compat, version, suite, &subsystem));
            let other = key.derive_retained(&nqn("nqn.other"), HkdfLabelFormat::Standard);
            all.push(psk(&other, version, suite, &subsystem));
        }
    }
    let count = all.len();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), count);
    let identity =
        retained.psk_identity(IdentityVersion::One, CipherSuite::Aes128GcmSha256, &host, &subsystem).unwrap();
    assert!(key.derive_retained(&host, HkdfLabelFormat::Compat).tls_psk(&identity).is_none());
}

#[test]
fn names_with_spaces_or_too_long_for_a_key_have_no_identity() {
    let key = ConfiguredPsk::parse(TEXT_32).unwrap();
    let identity = |version, host: &Nqn, subsystem: &Nqn| {
        key.derive_retained(host, HkdfLabelFormat::Standard).psk_identity(
            version,
            key.default_suite(),
            host,
            subsystem,
        )
    };
    let (host, subsystem) = names();
    assert!(identity(IdentityVersion::Zero, &nqn("nqn.a b"), &subsystem).is_none());
    assert!(identity(IdentityVersion::One, &host, &nqn("nqn.a b")).is_none());
    let long = nqn(&format!("nqn.{}", "x".repeat(219)));
    assert!(identity(IdentityVersion::Zero, &long, &long).is_none());
    let identity = identity(IdentityVersion::One, &long, &long).unwrap();
    assert_eq!(PskIdentity::parse(identity.to_string().as_bytes()).unwrap(), identity);
}

#[test]
fn wrong_identities_are_named() {
    let digest = "iSbjiStwJ/1TrTvDlt2fjFmzvsytOJelidNnA+X5lEU=";
    for (text, error) in [
        ("", IdentityError::Form),
        ("Client_identity", IdentityError::Form),
        ("NVMe2R01 nqn.h nqn.s", IdentityError::Form),
        ("NVMe0X01 nqn.h nqn.s", IdentityError::Form),
        ("NVMe0R00 nqn.h nqn.s", IdentityError::Form),
        ("NVMe0R03 nqn.h nqn.s", IdentityError::Form),
        ("NVMe0R11 nqn.h nqn.s", IdentityError::Form),
        ("NVMe0R01", IdentityError::Names),
        ("NVMe0R01 nqn.h", IdentityError::Names),
        ("NVMe0R01  nqn.h nqn.s", IdentityError::Names),
        ("NVMe0R01 nqn.h nqn.s ", IdentityError::Names),
        ("NVMe0R01 host nqn.s", IdentityError::Names),
        ("NVMe1R01 nqn.h nqn.s", IdentityError::Names),
        ("NVMe1R01 nqn.h nqn.s short", IdentityError::Names),
        (&format!("NVMe0R01 nqn.h nqn.s {digest}"), IdentityError::Names),
        (&format!("NVMe1R01 nqn.h nqn.s {digest} "), IdentityError::Names),
        (&"x".repeat(1000), IdentityError::Text),
    ] {
        assert_eq!(PskIdentity::parse(text.as_bytes()).unwrap_err(), error, "{text}");
    }
    assert_eq!(PskIdentity::parse(&[0xff; 8]).unwrap_err(), IdentityError::Text);
    let generated = PskIdentity::parse(format!("NVMe1G02 nqn.h nqn.s {digest}").as_bytes()).unwrap();
    assert_eq!(generated.kind, PskKind::Generated);
}

#[test]
fn wrong_keys_are_named_and_not_shown() {
    for (text, flaw) in [
        ("DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:", KeyFlaw::Prefix),
        (&TEXT_32.replace(":01:", ":03:"), KeyFlaw::Transform),
        (&TEXT_32.replace(":01:", ":+1:"), KeyFlaw::Transform),
        (TEXT_32.strip_suffix(':').unwrap(), KeyFlaw::Colon),
        (&TEXT_32.replace("VRL", "V*L"), KeyFlaw::Base64),
        (&TEXT_32.replace("VRL", "WRL"), KeyFlaw::Checksum),
        ("NVMeTLSkey-1:01:AAAAAAAA:", KeyFlaw::Length(2)),
        // 64 bytes, which a secret of DH-HMAC-CHAP may have.
        (&key_interchange::format_key_text(KeyKind::Tls, 1, &[7; 64]), KeyFlaw::Length(64)),
    ] {
        let wrong = ConfiguredPsk::parse(text).unwrap_err();
        assert_eq!(wrong, KeyError { kind: KeyKind::Tls, flaw }, "{text}");
        assert!(!wrong.to_string().contains("RLb"));
    }
    let key = ConfiguredPsk::parse(TEXT_32).unwrap();
    let (host, subsystem) = names();
    let retained = key.derive_retained(&host, HkdfLabelFormat::Standard);
    let identity =
        retained.psk_identity(IdentityVersion::Zero, key.default_suite(), &host, &subsystem).unwrap();
    let shown = format!("{key:?} {retained:?} {:?}", retained.tls_psk(&identity).unwrap());
    assert_eq!(shown, "ConfiguredPsk(..) RetainedPsk(..) TlsPsk(..)");
}

proptest! {
    #[test]
    fn keys_survive_their_text(bytes in prop_oneof![any::<[u8; 32]>().prop_map(Vec::from), prop::collection::vec(any::<u8>(), 48)], hash in 0u8..3) {
        let text = key_interchange::format_key_text(KeyKind::Tls, hash, &bytes);
        let key = ConfiguredPsk::parse(&text).unwrap();
        prop_assert_eq!(&key.bytes[..], &bytes[..]);
        prop_assert_eq!(key.to_text(), text);
    }

    #[test]
    fn a_changed_character_is_noticed(at in 16usize..64, to in "[A-Za-z0-9+/]") {
        let mut text = TEXT_32.to_owned();
        let was = text[at..=at].to_owned();
        text.replace_range(at..=at, &to);
        prop_assert_eq!(ConfiguredPsk::parse(&text).is_ok(), was == to);
    }

    #[test]
    fn what_is_read_as_an_identity_prints_the_same(text in "NVMe[01][RG]0[12] nqn\\.[a-z :.]{1,12} nqn\\.[a-z:.]{1,12}( [A-Za-z0-9+/]{43}=)?") {
        if let Ok(identity) = PskIdentity::parse(text.as_bytes()) {
            prop_assert_eq!(identity.to_string(), text);
        }
    }

    #[test]
    fn no_bytes_are_too_much_for_the_parsers(bytes in prop::collection::vec(any::<u8>(), 0..700)) {
        let _ = PskIdentity::parse(&bytes);
        let _ = ConfiguredPsk::parse(&String::from_utf8_lossy(&bytes));
    }
}
