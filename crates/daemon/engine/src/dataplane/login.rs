//! The plan's negotiation limits and credentials, in the form for the iSCSI login.

use iscsi::{
    chap::{Algorithm, ChapAccount, Secret},
    login::{AuthPolicy, ChapAccounts},
    negotiate::{Digest, NegotiationLimits},
};

use config::plan::{Auth, AuthMethod, ChapAlgorithm, Credentials, DigestPolicy, Negotiation, Target};

/// What a target agrees to.
pub fn negotiation_limits(negotiation: &Negotiation) -> NegotiationLimits {
    NegotiationLimits {
        header_digest: offered_digests(negotiation.header_digest),
        data_digest: offered_digests(negotiation.data_digest),
        mrdsl: negotiation.max_receive,
        max_connections: negotiation.max_connections.into(),
        initial_r2t: negotiation.initial_r2t,
        immediate_data: negotiation.immediate_data,
        max_burst: negotiation.max_burst,
        first_burst: negotiation.first_burst,
        max_outstanding_r2t: negotiation.max_outstanding_r2t.into(),
        ..NegotiationLimits::default()
    }
}

fn offered_digests(policy: DigestPolicy) -> Vec<Digest> {
    match policy {
        DigestPolicy::Off => vec![Digest::None],
        DigestPolicy::Allow => vec![Digest::None, Digest::Crc32c],
        DigestPolicy::Require => vec![Digest::Crc32c],
    }
}

/// How an initiator of a target that may use `own` credentials must prove itself; those of the target,
/// then those of the whole daemon, count where it has none.
pub fn target_policy(auth: &Auth, target: &Target, own: &[Credentials]) -> AuthPolicy {
    let credentials = if own.is_empty() { auth.shared_credentials(target) } else { own };
    auth_policy(auth, credentials, auth.target_methods(target), auth.demands_mutual(target))
}

/// How initiators authenticate for discovery sessions.
pub fn discovery_policy(auth: &Auth) -> AuthPolicy {
    auth_policy(auth, &auth.discovery, auth.methods(), auth.mutual)
}

fn auth_policy(
    auth: &Auth,
    credentials: &[Credentials],
    methods: &[AuthMethod],
    demands_mutual: bool,
) -> AuthPolicy {
    if credentials.is_empty() {
        return AuthPolicy::None;
    }
    let account = |name: &str, secret: &config::plan::Secret| ChapAccount {
        name: name.to_owned(),
        secret: Secret::new(secret.expose().to_vec()),
    };
    let chap = ChapAccounts {
        accounts: credentials.iter().map(|c| account(&c.user, &c.secret)).collect(),
        // The configuration has seen to it that one list has one mutual account.
        mutual: credentials
            .iter()
            .find_map(|c| c.mutual.as_ref())
            .map(|(name, secret)| account(name, secret)),
        demands_mutual,
        algorithms: auth.chap_algorithms(demands_mutual).iter().map(|hash| chap_algorithm(*hash)).collect(),
    };
    let at = |method| methods.iter().position(|one| *one == method);
    match (at(AuthMethod::Chap), at(AuthMethod::None)) {
        (_, None) => AuthPolicy::Required(chap),
        (Some(chap_at), Some(none_at)) if chap_at < none_at => AuthPolicy::Optional(chap),
        (_, Some(_)) => AuthPolicy::Dispensable(chap),
    }
}

fn chap_algorithm(hash: ChapAlgorithm) -> Algorithm {
    match hash {
        ChapAlgorithm::Md5 => Algorithm::MD5,
        ChapAlgorithm::Sha1 => Algorithm::SHA1,
        ChapAlgorithm::Sha256 => Algorithm::SHA256,
        ChapAlgorithm::Sha3_256 => Algorithm::SHA3_256,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::example::example_plan;
    use config::plan::TargetAuth;

    #[test]
    fn limits_are_those_of_the_plan() {
        let plan = example_plan();
        let made = negotiation_limits(&plan.ways.targets[0].negotiation);
        assert_eq!(made.data_digest, [Digest::Crc32c]);
        assert_eq!(made.header_digest, [Digest::None, Digest::Crc32c]);
        assert_eq!((made.first_burst, made.max_burst, made.max_outstanding_r2t), (128 << 10, 1 << 20, 8));
    }

    #[test]
    fn credentials_are_the_hosts_own_else_the_daemons() {
        let mut plan = example_plan();
        let own = plan.hosts[1].chap.clone();
        let mut target = plan.ways.targets[0].clone();
        let AuthPolicy::Required(chap) = target_policy(&plan.auth, &target, &own) else {
            panic!("CHAP is required")
        };
        assert_eq!(chap.accounts[0].name, "db1");
        assert_eq!(chap.mutual.as_ref().map(|account| account.name.as_str()), Some("rack4"));
        assert_eq!(chap.algorithms, [Algorithm::SHA3_256, Algorithm::SHA256]);
        assert!(
            matches!(target_policy(&plan.auth, &target, &[]), AuthPolicy::None),
            "there are no common credentials"
        );
        plan.auth.chap = own;
        assert!(matches!(target_policy(&plan.auth, &target, &[]), AuthPolicy::Required(_)));
        // MD5 is accepted unless mutual authentication is demanded; then, where it is named.
        let accepts_md5 = |auth: &Auth| {
            let AuthPolicy::Required(chap) = discovery_policy(auth) else { panic!("as configured") };
            chap.algorithms.contains(&Algorithm::MD5)
        };
        let accepted = |hashes: &[ChapAlgorithm], mutual| {
            accepts_md5(&Auth { hashes: hashes.to_vec(), mutual, ..plan.auth.clone() })
        };
        assert!(accepted(&[], false) && !accepted(&[], true));
        assert!(
            accepted(&[ChapAlgorithm::Sha256, ChapAlgorithm::Md5], true)
                && !accepted(&[ChapAlgorithm::Sha256], false)
        );
        plan.auth.methods = vec![AuthMethod::Chap, AuthMethod::None];
        assert!(matches!(target_policy(&plan.auth, &target, &[]), AuthPolicy::Optional(_)));
        let AuthPolicy::Optional(chap) = discovery_policy(&plan.auth) else { panic!("as configured") };
        assert_eq!(chap.accounts[0].name, "discover");
        plan.auth.methods.reverse();
        assert!(matches!(target_policy(&plan.auth, &target, &[]), AuthPolicy::Dispensable(_)));
        // What a target says of its own comes before what is said of the whole daemon, behind its hosts'.
        let credentials = Credentials { user: "eve".into(), ..plan.auth.chap[0].clone() };
        let methods = vec![AuthMethod::Chap];
        target.auth = Some(TargetAuth { chap: vec![credentials], methods, mutual: true });
        let AuthPolicy::Required(chap) = target_policy(&plan.auth, &target, &[]) else {
            panic!("its own methods")
        };
        assert!(chap.demands_mutual && chap.accounts[0].name == "eve");
        let AuthPolicy::Required(chap) = target_policy(&plan.auth, &target, &plan.auth.chap) else {
            panic!()
        };
        assert!(chap.demands_mutual && chap.accounts[0].name == "db1");
    }
}
