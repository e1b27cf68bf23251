//! Warnings about what is no error, but probably a mistake: a configuration that serves nothing, and hosts that are
//! locked out.

use std::collections::HashSet;

use crate::{
    diagnostic::{Located, Place, Sink},
    draft::HostDraft,
    name::VolumeName,
    plan::{Plan, Volume},
    spec::VolumeSource,
};
use multipath::Url;

/// Warns of a sound plan. `is_left_to_hosts`: whether a target or subsystem does not say itself if it is open.
pub fn note_plan_warnings(
    plan: &Plan,
    hosts: &[Located<HostDraft>],
    volumes: &[Located<Volume>],
    is_left_to_hosts: bool,
    sink: &Sink,
) {
    if !sink.is_clean() {
        return;
    }
    if plan.volumes.is_empty() && plan.ways.targets.is_empty() {
        sink.note_warning(
            &Place::outside_file("configuration"),
            "there is no [[volume]]: nothing is served; add one, or use `blockwire volume create` while the daemon runs",
        );
    }
    if let ([host], true) = (hosts, is_left_to_hosts) {
        sink.note_warning(
            &host.at,
            format!(
                "\"{}\" is the only [[host]]: with it, every host without a grant is refused by targets and subsystems \
                 that do not say open = true",
                host.value.host.name
            ),
        );
    }
    for volume in volumes {
        for (url, warning) in
            urls_of_source(&volume.value.spec.source).iter().filter_map(|url| Some((url, url.warning()?)))
        {
            sink.note_warning(&volume.at, format!("volume \"{}\": {url}: {warning}", volume.value.name));
        }
    }
    let reached = reached(plan);
    for volume in volumes.iter().filter(|_| !hosts.is_empty()) {
        let name = &volume.value.name;
        if !reached.contains(name) {
            sink.note_warning(
                &volume.at,
                format!(
                    "no host can reach volume \"{name}\": its targets and subsystems are not open, and no [[host]] has a \
                     grant for one of them"
                ),
            );
        }
    }
}

/// The URLs of a volume on other machines.
fn urls_of_source(source: &VolumeSource) -> Vec<Url> {
    match source {
        VolumeSource::Remote(urls) => Url::parse_joined(urls).unwrap_or_default(),
        VolumeSource::Ram
        | VolumeSource::File(_)
        | VolumeSource::Device(_)
        | VolumeSource::Null
        | VolumeSource::Rbd(_)
        | VolumeSource::Nbd(_) => Vec::new(),
        VolumeSource::Stripe(stripe) => {
            stripe.legs.iter().flat_map(|leg| urls_of_source(&leg.source)).collect()
        }
    }
}

/// The volumes that any host may reach, by whatever name.
fn reached(plan: &Plan) -> HashSet<&VolumeName> {
    let targets = plan.ways.targets.iter().filter(|target| {
        let mut hosts = plan.hosts.iter().filter(|host| host.may_use_iscsi());
        target.open || hosts.any(|host| host.target_grant(&target.name).is_some())
    });
    let subsystems = plan.ways.subsystems.iter().filter(|one| {
        let mut hosts = plan.hosts.iter().filter(|host| host.may_use_nvme());
        one.open || hosts.any(|host| host.subsystem_grant(&one.nqn).is_some())
    });
    let luns = targets.flat_map(|target| &target.luns).map(|lun| &lun.volume);
    luns.chain(subsystems.flat_map(|one| &one.namespaces).map(|one| &one.volume)).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::{
        check::{self, CommandLineOptions},
        diagnostic::{Sink, SourceText},
        draft::Draft,
        read_text,
    };

    fn warnings(text: &str) -> Vec<String> {
        let (sink, mut draft) = (Sink::default(), Draft::default());
        read_text(&SourceText::new("f", text.to_owned()), Path::new("/"), false, &sink, &mut draft);
        let plan = check::resolve_draft(draft, &CommandLineOptions::default(), &sink);
        let (_, warnings) = sink.into_result(plan).unwrap();
        warnings.iter().map(ToString::to_string).collect()
    }

    const PORTAL: &str = "[[portal]]\nprotocol = \"iscsi\"\naddress = \"127.0.0.1\"\n";
    const VOLUME: &str = "[[volume]]\nname = \"a\"\nsource = \"ram:1M\"\n";

    #[test]
    fn a_configuration_without_volumes_is_told() {
        assert!(warnings(PORTAL)[0].contains("nothing is served"), "{:?}", warnings(PORTAL));
        assert_eq!(warnings(&format!("{PORTAL}{VOLUME}")), [] as [String; 0]);
    }

    #[test]
    fn the_first_host_is_told_whom_it_locks_out() {
        let host = "[[host]]\nname = \"h\"\niqn = [\"iqn.2026-11.x:h\"]\naccess = [{ target = \"*\" }]\n";
        let said = warnings(&format!("{PORTAL}{VOLUME}{host}"));
        assert!(said.len() == 1 && said[0].contains("the only [[host]]"), "{said:?}");
        let target =
            "[[target]]\nname = \"iqn.2026-11.x:t\"\nopen = true\nluns = [{ lun = 0, volume = \"a\" }]\n";
        let said = warnings(&format!("{PORTAL}{VOLUME}{target}{host}"));
        assert_eq!(said, [] as [String; 0], "it says itself that it is open");
    }

    #[test]
    fn a_generated_key_of_a_controller_that_proves_nothing_is_told() {
        let url = "nvme+tcp://192.0.2.1/nqn.2026-11.x:v/1?secret_file=/s&concat=yes";
        let volume = |source: &str| format!("[[volume]]\nname = \"a\"\nsource = \"{source}\"\n");
        for source in [url.to_owned(), format!("stripe:{url}+{url}")] {
            let said = warnings(&format!("{PORTAL}{}", volume(&source)));
            assert!(said[0].contains("volume \"a\"") && said[0].contains("proves nothing"), "{said:?}");
        }
        let proven = format!("{url}&mutual_secret_file=/m");
        assert_eq!(warnings(&format!("{PORTAL}{}", volume(&proven))), [] as [String; 0]);
    }

    #[test]
    fn a_volume_that_no_host_reaches_is_told() {
        let host = "[[host]]\nname = \"h\"\niqn = [\"iqn.2026-11.x:h\"]\naccess = [{ target = \"iqn.2026-11.x:t\" }]\n";
        let target = "[[target]]\nname = \"iqn.2026-11.x:t\"\nopen = false\nluns = []\n";
        let said = warnings(&format!("{PORTAL}{VOLUME}{target}{host}"));
        assert!(said.iter().any(|one| one.contains("no host can reach volume \"a\"")), "{said:?}");
    }
}
