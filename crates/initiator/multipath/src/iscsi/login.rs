//! How paths and discoveries handle a failed login and a redirection.

use std::net::{IpAddr, SocketAddr};

use iscsi::initiator::LoginFailure;
use iscsi::name::TargetAddress;
use iscsi::wire::LoginStatus;

use crate::DownReason;

/// How many redirections one attempt follows.
const REDIRECTS_MAX: usize = 4;

/// Why there is no session, and whether another address would be no better.
pub(super) fn login_failure_reason(failure: &LoginFailure) -> (DownReason, bool) {
    let text = failure.to_string();
    match failure {
        LoginFailure::Authentication | LoginFailure::Refused(LoginStatus::AUTHENTICATION_FAILURE) => {
            (DownReason::Unproven(text), true)
        }
        LoginFailure::CredentialsMissing => {
            let how = "in a URL: iscsi://USER@HOST/IQN/LUN?secret_file=FILE";
            (DownReason::Unproven(format!("{text} ({how})")), true)
        }
        LoginFailure::Refused(LoginStatus::TARGET_NOT_FOUND | LoginStatus::TARGET_REMOVED) => {
            (DownReason::Absent(text), false)
        }
        LoginFailure::Refused(LoginStatus::AUTHORIZATION_FAILURE) => (DownReason::Refused(text), true),
        LoginFailure::CutShort => (DownReason::CutShort(text), false),
        LoginFailure::TimedOut => (DownReason::Silent(text), false),
        LoginFailure::Refused(LoginStatus::SERVICE_UNAVAILABLE | LoginStatus::OUT_OF_RESOURCES) => {
            (DownReason::Lost(text), false)
        }
        LoginFailure::Refused(_)
        | LoginFailure::Moved(..)
        | LoginFailure::Unexpected(_)
        | LoginFailure::Malformed => (DownReason::Refused(text), false),
        LoginFailure::Violation(_) | LoginFailure::TooManyRequests => (DownReason::Refused(text), false),
    }
}

/// Where a redirection leads (RFC 7143 §11.13.5): nowhere twice, and not for ever. Names are not resolved
/// here: the complaint names the way.
pub(super) fn redirect_address(
    hops: &mut Vec<SocketAddr>,
    from: SocketAddr,
    to: &TargetAddress,
) -> Result<SocketAddr, String> {
    let Ok(host) = to.host().parse::<IpAddr>() else {
        return Err(format!("the target has moved to {to}, which is a name; connect to that address"));
    };
    let address = SocketAddr::new(host, to.port());
    hops.push(from);
    if hops.contains(&address) || hops.len() > REDIRECTS_MAX {
        let count = hops.len();
        return Err(format!(
            "the target sends us round and round ({count} redirections, now to {to}); mend its redirections"
        ));
    }
    Ok(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_that_is_gone_is_as_absent_as_one_that_never_was() {
        for (status, absent) in [
            (LoginStatus::TARGET_NOT_FOUND, true),
            (LoginStatus::TARGET_REMOVED, true),
            (LoginStatus::SERVICE_UNAVAILABLE, false),
            (LoginStatus::AUTHORIZATION_FAILURE, false),
        ] {
            let (why, _) = login_failure_reason(&LoginFailure::Refused(status));
            assert_eq!(matches!(why, DownReason::Absent(_)), absent, "{status:?}: {why:?}");
        }
        assert!(matches!(login_failure_reason(&LoginFailure::CutShort), (DownReason::CutShort(_), false)));
        let (why, is_hopeless) = login_failure_reason(&LoginFailure::CredentialsMissing);
        assert!(
            is_hopeless && matches!(&why, DownReason::Unproven(said) if said.contains("USER@")),
            "{why:?}"
        );
    }
}
