//! Volumes that something else serves already.

use eval::preset::{Medium, Protocol};

use super::{Serving, Target, TargetSetup};
use crate::Failure;
use crate::place::Place;

/// What was named by URLs.
#[derive(Debug)]
pub(super) struct UrlTarget {
    urls: Vec<String>,
    protocols: Vec<Protocol>,
}

fn protocol(url: &str) -> Protocol {
    if url.starts_with("nvme") { Protocol::NvmeTcp } else { Protocol::Iscsi }
}

impl UrlTarget {
    pub(super) fn new(urls: &[String]) -> UrlTarget {
        let mut protocols: Vec<Protocol> = urls.iter().map(|url| protocol(url)).collect();
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

    fn missing(&self, _place: &Place) -> Option<String> {
        None
    }

    fn has(&self, medium: Medium) -> bool {
        medium == Medium::Ram
    }

    fn start(&self, setup: &TargetSetup<'_>) -> Result<Serving, Failure> {
        let urls: Vec<String> =
            self.urls.iter().filter(|url| protocol(url) == setup.protocol).cloned().collect();
        let mut serving = Serving::new(setup.protocol, 0, Vec::new());
        serving.fixed = Some(urls);
        Ok(serving)
    }
}
