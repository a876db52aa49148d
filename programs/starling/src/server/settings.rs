//! The settings of a server: flags, and under them those of the file that `--config` names.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use starling_http_api::parse::parse_duration;
use starling_model::Datacenter;
use starling_server::{CsrLimits, GRACE_DEFAULT};
use starling_vault::{Address as VaultAddress, TIMEOUT_DEFAULT as VAULT_TIMEOUT_DEFAULT, VaultConfig};

use super::ServerArgs;
use super::etcd::is_loopback;
use crate::outcome::usage;
use crate::role::arguments::{AclDefault, IntentionPolicy};

/// Shortest grace: a stream that breaks needs that long to be made anew.
const GRACE_MIN: Duration = Duration::from_secs(1);

/// Certificates that a Vault is asked for at the same time.
const VAULT_CONCURRENT: u32 = 32;

/// The file, as it is written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    http_addr: Option<SocketAddr>,
    grpc_tls_addr: Option<SocketAddr>,
    dns_addr: Option<SocketAddr>,
    datacenter: Option<Datacenter>,
    default_intention_policy: Option<IntentionPolicy>,
    acl_default_policy: Option<AclDefault>,
    node_grace: Option<String>,
    csr_max_per_second: Option<u32>,
    csr_max_concurrent: Option<u32>,
    ca: Option<RawCa>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCa {
    vault: Option<RawVault>,
}

/// A Vault, as the file names it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawVault {
    address: String,
    mount: Option<String>,
    role: String,
    token_file: PathBuf,
    ca_file: Option<PathBuf>,
    roots_file: Option<PathBuf>,
    namespace: Option<String>,
    timeout: Option<String>,
}

/// What holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) http_addr: SocketAddr,
    pub(super) grpc_tls_addr: SocketAddr,
    pub(super) dns_addr: SocketAddr,
    pub(super) datacenter: Datacenter,
    pub(super) default_intention_policy: IntentionPolicy,
    pub(super) acl_default_policy: Option<AclDefault>,
    pub(super) grace: Duration,
    pub(super) csr: CsrLimits,
    pub(super) vault: Option<VaultConfig>,
}

impl Settings {
    /// What flags and file say.
    pub(super) fn of(args: &ServerArgs) -> anyhow::Result<Self> {
        let (raw, path) = match &args.config {
            None => (Raw::default(), Path::new("")),
            Some(path) => (read(path)?, path.as_path()),
        };
        let loopback = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let datacenter = args.datacenter.clone().or(raw.datacenter);
        let acl_default_policy = args.acl_default_policy.or(raw.acl_default_policy);
        let policy = args.default_intention_policy.or(raw.default_intention_policy);
        let vault = raw.ca.and_then(|ca| ca.vault).map(|raw| vault(path, raw)).transpose()?;
        // It signs in some milliseconds, of which it waits the most.
        let concurrent = raw.csr_max_concurrent.or(vault.is_some().then_some(VAULT_CONCURRENT));
        Ok(Self {
            http_addr: args.http_addr.or(raw.http_addr).unwrap_or_else(|| loopback(8500)),
            grpc_tls_addr: args.grpc_tls_addr.or(raw.grpc_tls_addr).unwrap_or_else(|| loopback(8503)),
            dns_addr: args.dns_addr.or(raw.dns_addr).unwrap_or_else(|| loopback(8600)),
            datacenter: datacenter.map_or_else(|| Datacenter::new("dc1"), Ok)?,
            default_intention_policy: IntentionPolicy::or_as_acl(policy, acl_default_policy),
            acl_default_policy,
            grace: raw.node_grace.map_or(Ok(GRACE_DEFAULT), |text| grace(path, &text))?,
            csr: csr(raw.csr_max_per_second, concurrent),
            vault,
        })
    }
}

fn read(path: &Path) -> anyhow::Result<Raw> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| usage(format!("--config: cannot read {}: {error}", path.display())))?;
    toml::from_str(&text).map_err(|error| usage(format!("{}: {}", path.display(), error.to_string().trim_end())))
}

fn vault(path: &Path, raw: RawVault) -> anyhow::Result<VaultConfig> {
    let wrong = |field: &str, reason: &str| usage(format!("{}: ca.vault.{field}: {reason}", path.display()));
    let segments = |field: &str, text: &str| {
        let letters = |part: &str| part.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
        let whole = |part: &str| !matches!(part, "" | "." | "..") && letters(part);
        let fits = text.split('/').all(whole);
        if fits { Ok(text.to_owned()) } else { Err(wrong(field, "is letters, digits, '-', '_' and '.'")) }
    };
    let timeout = match raw.timeout {
        None => VAULT_TIMEOUT_DEFAULT,
        Some(text) => parse_duration(&text)
            .filter(|timeout| !timeout.is_zero())
            .ok_or_else(|| wrong("timeout", "must be a duration such as \"10s\""))?,
    };
    let address: VaultAddress = raw.address.parse().map_err(|error| wrong("address", &format!("{error}")))?;
    if !address.is_tls() && !is_loopback(address.host()) {
        let reason = "must be https://HOST:PORT for another machine: without TLS anybody on the way reads the token";
        return Err(wrong("address", reason));
    }
    if address.is_tls() && raw.ca_file.is_none() {
        return Err(wrong("ca_file", "an https address needs it: the CAs whose certificates are believed, in PEM"));
    }
    Ok(VaultConfig {
        address,
        mount: segments("mount", raw.mount.as_deref().unwrap_or("pki"))?,
        role: segments("role", &raw.role)?,
        token_file: raw.token_file,
        ca_file: raw.ca_file,
        roots_file: raw.roots_file,
        namespace: raw.namespace,
        timeout,
    })
}

fn grace(path: &Path, text: &str) -> anyhow::Result<Duration> {
    let grace = parse_duration(text).filter(|grace| *grace >= GRACE_MIN);
    grace.ok_or_else(|| {
        let reason = "must be a duration of 1s at least, such as \"10s\"";
        usage(format!("{}: node_grace: {text:?} {reason}", path.display()))
    })
}

/// 0 switches a limit off; what is not given stays as it is.
fn csr(per_second: Option<u32>, concurrent: Option<u32>) -> CsrLimits {
    let usual = CsrLimits::default();
    let limit = |given: Option<u32>, usual| given.map_or(usual, |max| (max > 0).then_some(max));
    CsrLimits {
        per_second_max: limit(per_second, usual.per_second_max),
        concurrent_max: limit(concurrent, usual.concurrent_max),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: ServerArgs,
    }

    fn settings(file: &str, flags: &[&str]) -> anyhow::Result<Settings> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("server.toml");
        std::fs::write(&path, file).unwrap();
        let config = path.to_str().unwrap();
        let line = [&["server", "--data-dir", "d", "--config", config], flags].concat();
        Settings::of(&Line::parse_from(line).args)
    }

    #[test]
    fn flags_win_over_the_file_and_the_file_over_what_is_usual() {
        let file = "http_addr = \"10.0.0.1:1\"\ndns_addr = \"10.0.0.1:2\"\nnode_grace = \"2s\"\n\
                    csr_max_per_second = 100\ncsr_max_concurrent = 0\ndefault_intention_policy = \"deny\"\nacl_default_policy = \"deny\"\n";
        let found = settings(file, &["--http-addr", "10.0.0.2:1"]).unwrap();
        assert_eq!(found.http_addr.to_string(), "10.0.0.2:1");
        assert_eq!(found.dns_addr.to_string(), "10.0.0.1:2");
        assert_eq!(found.grpc_tls_addr.to_string(), "127.0.0.1:8503");
        assert_eq!(found.grace, Duration::from_secs(2));
        assert_eq!(found.csr, CsrLimits { per_second_max: Some(100), concurrent_max: None });
        assert_eq!(found.default_intention_policy, IntentionPolicy::Deny);
        assert_eq!(found.acl_default_policy, Some(AclDefault::Deny));
        assert_eq!(settings("", &[]).unwrap().csr, CsrLimits::default());
    }

    #[test]
    fn calls_without_an_intention_follow_the_acl_default_unless_set() {
        for (file, expected) in [
            ("", IntentionPolicy::Allow),
            ("acl_default_policy = \"allow\"\n", IntentionPolicy::Allow),
            ("acl_default_policy = \"deny\"\n", IntentionPolicy::Deny),
            ("acl_default_policy = \"deny\"\ndefault_intention_policy = \"allow\"\n", IntentionPolicy::Allow),
            ("acl_default_policy = \"allow\"\ndefault_intention_policy = \"deny\"\n", IntentionPolicy::Deny),
        ] {
            assert_eq!(settings(file, &[]).unwrap().default_intention_policy, expected, "{file}");
        }
    }

    #[test]
    fn a_mistake_in_the_file_is_named() {
        for (file, expected) in [
            ("node_grac = \"2s\"\n", "unknown field `node_grac`"),
            ("node_grace = \"0s\"\n", "node_grace: \"0s\" must be a duration of 1s at least"),
            ("http_addr = \"10.0.0.1\"\n", "http_addr"),
            ("csr_max_per_second = -1\n", "csr_max_per_second"),
            ("[ca.vault]\naddress = \"vault:8200\"\nrole = \"mesh\"\ntoken_file = \"t\"\n", "ca.vault.address"),
            ("[ca.vault]\naddress = \"https://v:8200\"\nrole = \"mesh\"\ntoken_file = \"t\"\n", "ca.vault.ca_file"),
            ("[ca.vault]\naddress = \"http://v:8200\"\nrole = \"mesh\"\ntoken_file = \"t\"\n", "ca.vault.address"),
            ("[ca.vault]\naddress = \"http://[::1]:8200\"\nrole = \"../mesh\"\ntoken_file = \"t\"\n", "ca.vault.role"),
            ("[ca.vault]\nrole = \"mesh\"\ntoken_file = \"t\"\n", "address"),
        ] {
            let error = format!("{:#}", settings(file, &[]).expect_err(file));
            assert!(error.contains(expected) && error.contains("server.toml"), "{error}");
        }
    }

    #[test]
    fn help_tells_every_setting() {
        use clap::CommandFactory;
        let help = Line::command().render_long_help().to_string();
        let error = format!("{:#}", settings("none = 1", &[]).expect_err("unknown"));
        let names = error.split('`').skip(3).step_by(2).collect::<Vec<_>>();
        assert_eq!(names.len(), 10, "{error}");
        assert!(names.iter().all(|name| help.contains(name)), "{names:?}: {help}");
    }
}
