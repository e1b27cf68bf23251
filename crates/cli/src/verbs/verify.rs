//! `blockwire verify`: whether two volumes, or a volume and a file, have the same contents.

use clap::Args;
use client::Settings;

use super::{create_initiator, json_text, print};
use config::size::format_human;
use control::secret_url::SecretUrl;
use process::exit::{Exit, Failure};
use reports::ComparisonReport;
use transfer::compare::compare_ends;
use transfer::copy_ends::CopyEnd;

/// `verify`
#[derive(Debug, Args)]
pub struct CompareVolumesArgs {
    /// A URL, or a file or device
    pub one: SecretUrl,
    /// What to compare it with: a URL, or a file or device
    pub other: SecretUrl,
    /// Show no progress bar
    #[arg(long, short)]
    pub quiet: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Compares.
pub fn verify(args: &CompareVolumesArgs) -> Result<Exit, Failure> {
    let mut initiator = create_initiator(Settings::default())?;
    let one = CopyEnd::open_source(&mut initiator, &args.one)?;
    let other = CopyEnd::open_source(&mut initiator, &args.other)?;
    let (a, b) = (one.len_bytes()?, other.len_bytes()?);
    if a != b {
        let why =
            format!("{} has {a} bytes, {} has {b}", redacted_name(&args.one), redacted_name(&args.other));
        return Err(Failure::failed(why));
    }
    compare_ends(&mut initiator, (&one, &other), a, args.quiet)?;
    one.close_end(&mut initiator)?;
    other.close_end(&mut initiator)?;
    let told = if args.json {
        json_text(&ComparisonReport { size_bytes: a, alike: true })
    } else {
        format!("{} compared: alike\n", format_human(a))
    };
    print(&told)?;
    Ok(Exit::Success)
}

/// An end as it may be shown: a volume without its passwords.
fn redacted_name(name: &str) -> String {
    match client::urls_of_name(name) {
        Ok((_, shown)) => shown,
        // It was opened, so it is a path.
        Err(_) => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::redacted_name;

    #[test]
    fn ends_are_shown_without_passwords() {
        let path = "iscsi://u%hush@127.0.0.1/iqn.2026-11.x:y/0";
        for name in [path.to_owned(), format!("{path},{path}"), format!("stripe:{path}+{path}")] {
            let said = redacted_name(&name);
            assert!(said.contains("iqn.2026-11.x:y") && !said.contains("hush"), "{said}");
        }
        assert_eq!(redacted_name("/srv/a,b"), "/srv/a,b");
    }
}
