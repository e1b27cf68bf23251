//! Authentication messages and secrets: whatever comes in whatever order, nobody gets in who never
//! had the key, and no text that is taken changes when it is written again.
//!
//! Input: bytes 0 and 1 say how long the next message is, and whether it goes to the controller, or
//! the host, or is room for the controller's.

#![no_main]

use libfuzzer_sys::fuzz_target;
use nvme::auth::{ControllerAuthenticator, Credentials, DhGroup, DhchapPolicy, DhchapSecret, Hash, HostAuthenticator};

fn credentials(fill: u8) -> Credentials {
    let secret = DhchapSecret::generate(Some(Hash::Sha256), &mut |bytes| bytes.fill(fill));
    Credentials {
        host_nqn: "nqn.2026-11.io.blockwire:host".to_owned(),
        subsystem_nqn: "nqn.2026-11.io.blockwire:disks".to_owned(),
        host: Some(secret.derive_key("nqn.2026-11.io.blockwire:host")),
        controller: Some(secret.derive_key("nqn.2026-11.io.blockwire:disks")),
    }
}

fuzz_target!(|data: &[u8]| {
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(secret) = DhchapSecret::parse(text)
    {
        assert_eq!(&**secret.to_text(), text.trim_ascii());
    }
    let policy = DhchapPolicy { groups: vec![DhGroup::Null, DhGroup::Ffdhe2048], ..DhchapPolicy::default() };
    let mut fill = |bytes: &mut [u8]| bytes.fill(7);
    let mut controller = ControllerAuthenticator::new(credentials(1), policy.clone());
    let (mut host, _) = HostAuthenticator::start(credentials(2), policy, 7, &mut fill);
    let mut rest = data;
    while let [low, high, tail @ ..] = rest {
        let len = usize::from(*low) | usize::from(high & 0x0f) << 8;
        let (message, behind) = tail.split_at(len.min(tail.len()));
        rest = behind;
        match high >> 6 {
            0 | 1 => drop(controller.handle_send(message, &mut fill)),
            2 => drop(controller.handle_receive(len as u32)),
            _ => {
                host.handle_sent();
                drop(host.handle_message(message));
            }
        }
        assert!(!controller.is_authenticated());
    }
});
