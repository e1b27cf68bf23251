//! Volumes that something else serves already.

use eval::preset::{Protocol, VolumeMedium};

use super::{ServingTarget, Target, TargetSetup};
use crate::Failure;
use crate::place::CommandLocation;

/// What was named by URLs.
#[derive(Debug)]
pub(super) struct UrlTarget {
    urls: Vec<String>,
    protocols: Vec<Protocol>,
}

fn protocol_of_url(url: &str) -> Protocol {
    if url.starts_with("nvme") { Protocol::NvmeTcp } else { Protocol::Iscsi }
}

impl UrlTarget {
    pub(super) fn new(urls: &[String]) -> UrlTarget {
        let mut protocols: Vec<Protocol> = urls.iter().map(|url| protocol_of_url(url)).collect();
        protocols.sort_unstable();
        protocols.dedup();
        UrlTarget { urls: urls.to_vec(), protocols }
    }
}

impl Target for UrlTarget {
    fn name(&self) -> &'static str {
        "url"
    }

    fn protocols(&self) -> &[Protocol] {
        &self.protocols
    }

    fn missing(&self, _place: &CommandLocation) -> Option<String> {
        None
    }

    fn supports_medium(&self, medium: VolumeMedium) -> bool {
        medium == VolumeMedium::Ram
    }

    fn start(&self, setup: &TargetSetup<'_>) -> Result<ServingTarget, Failure> {
        let urls: Vec<String> =
            self.urls.iter().filter(|url| protocol_of_url(url) == setup.protocol).cloned().collect();
        let mut serving = ServingTarget::new(setup.protocol, 0, Vec::new());
        serving.fixed = Some(urls);
        Ok(serving)
    }
}
