//! Where the etcd is on which a server keeps its catalog, and what is shown there: `--store etcd://…` and the flags beside it.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use starling_store::{EtcdCredentials, EtcdIdentity, EtcdOptions, EtcdPrefix, EtcdTls};

use crate::environment::Environment;
use crate::outcome::usage;

/// What the address of an etcd begins with.
pub(crate) const SCHEME: &str = "etcd://";

/// The members and the place in etcd: `etcd://HOST:PORT[,HOST:PORT…][/PREFIX]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EtcdAddress {
    endpoints: Vec<String>,
    prefix: EtcdPrefix,
}

impl FromStr for EtcdAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let rest = text.strip_prefix(SCHEME).ok_or("it begins with etcd://")?;
        let (members, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let endpoints = members.split(',').map(endpoint).collect::<Result<_, _>>()?;
        let prefix = match prefix {
            "" => EtcdPrefix::default(),
            prefix => prefix.parse().map_err(|error| format!("{error}"))?,
        };
        Ok(Self { endpoints, prefix })
    }
}

fn endpoint(text: &str) -> Result<String, String> {
    if text.contains('@') {
        return Err("a user is named by --etcd-user, and its password never stands on the command line".to_owned());
    }
    let authority = text.parse::<http::uri::Authority>().ok();
    match authority
        .filter(|authority| authority.port_u16().is_some_and(|port| port > 0) && !authority.host().is_empty())
    {
        Some(authority) => Ok(authority.to_string()),
        None => Err(format!("{text:?} is not of the form HOST:PORT")),
    }
}

/// How etcd is spoken to.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct EtcdArgs {
    /// Speak TLS with etcd, and believe certificates of these CAs, in PEM
    #[arg(long, value_name = "FILE")]
    etcd_ca_file: Option<PathBuf>,

    /// Certificate to show to etcd, in PEM
    #[arg(long, value_name = "FILE", requires = "etcd_ca_file", requires = "etcd_key_file")]
    etcd_cert_file: Option<PathBuf>,

    /// Its private key, in PEM
    #[arg(long, value_name = "FILE", requires = "etcd_cert_file")]
    etcd_key_file: Option<PathBuf>,

    /// User of etcd, with the password of --etcd-password-file or STARLING_ETCD_PASSWORD
    #[arg(long, value_name = "NAME")]
    etcd_user: Option<String>,

    /// File whose first line is the password
    #[arg(long, value_name = "FILE", requires = "etcd_user")]
    etcd_password_file: Option<PathBuf>,
}

/// How the etcd that is copied to is spoken to, where the one that is copied from is another.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct TargetEtcdArgs {
    /// As --etcd-ca-file, for the etcd that is copied to
    #[arg(long, value_name = "FILE")]
    target_etcd_ca_file: Option<PathBuf>,

    /// As --etcd-cert-file, for the etcd that is copied to
    #[arg(long, value_name = "FILE", requires = "target_etcd_ca_file", requires = "target_etcd_key_file")]
    target_etcd_cert_file: Option<PathBuf>,

    /// As --etcd-key-file, for the etcd that is copied to
    #[arg(long, value_name = "FILE", requires = "target_etcd_cert_file")]
    target_etcd_key_file: Option<PathBuf>,

    /// As --etcd-user, for the etcd that is copied to
    #[arg(long, value_name = "NAME", requires = "target_etcd_password_file")]
    target_etcd_user: Option<String>,

    /// As --etcd-password-file, for the etcd that is copied to
    #[arg(long, value_name = "FILE", requires = "target_etcd_user")]
    target_etcd_password_file: Option<PathBuf>,
}

impl TargetEtcdArgs {
    /// The same flags under their usual names; `None` if none is given.
    pub(crate) fn given(self) -> Option<EtcdArgs> {
        let args = EtcdArgs {
            etcd_ca_file: self.target_etcd_ca_file,
            etcd_cert_file: self.target_etcd_cert_file,
            etcd_key_file: self.target_etcd_key_file,
            etcd_user: self.target_etcd_user,
            etcd_password_file: self.target_etcd_password_file,
        };
        args.is_given().then_some(args)
    }
}

impl EtcdArgs {
    /// Whether any of them is given.
    pub(crate) fn is_given(&self) -> bool {
        self.etcd_ca_file.is_some() || self.etcd_user.is_some()
    }

    /// The way to the etcd at an address, with what the files hold.
    pub(crate) fn options(&self, address: &EtcdAddress, environment: &Environment) -> anyhow::Result<EtcdOptions> {
        let EtcdAddress { endpoints, prefix } = address.clone();
        let tls = match &self.etcd_ca_file {
            None => None,
            Some(path) => Some(EtcdTls { ca_pem: certificates("--etcd-ca-file", path)?, identity: self.identity()? }),
        };
        let credentials = self.credentials(environment)?;
        let remote = endpoints.iter().find(|endpoint| !is_loopback(host_of(endpoint)));
        if let (Some(_), None, Some(remote)) = (&credentials, &tls, remote) {
            return Err(usage(format!(
                "--etcd-user: {remote} is not on this machine, and without TLS anybody on the way reads the password and the \
                 catalog: give the CA of etcd by --etcd-ca-file"
            )));
        }
        Ok(EtcdOptions { prefix, tls, credentials, ..EtcdOptions::new(endpoints) })
    }

    fn identity(&self) -> anyhow::Result<Option<EtcdIdentity>> {
        let (Some(certificate), Some(key)) = (&self.etcd_cert_file, &self.etcd_key_file) else { return Ok(None) };
        let certificate_pem = certificates("--etcd-cert-file", certificate)?;
        Ok(Some(EtcdIdentity { certificate_pem, key_pem: read("--etcd-key-file", key)? }))
    }

    fn credentials(&self, environment: &Environment) -> anyhow::Result<Option<EtcdCredentials>> {
        let Some(user) = self.etcd_user.clone() else { return Ok(None) };
        let password = match (&self.etcd_password_file, &environment.etcd_password) {
            (Some(path), _) => {
                let text = String::from_utf8(read("--etcd-password-file", path)?);
                let text = text.map_err(|_| usage(format!("--etcd-password-file: {} is no text", path.display())))?;
                text.lines().next().unwrap_or_default().to_owned()
            }
            (None, Some(password)) => password.clone(),
            (None, None) => {
                return Err(usage("--etcd-user: give its password by --etcd-password-file or STARLING_ETCD_PASSWORD"));
            }
        };
        Ok(Some(EtcdCredentials { user, password }))
    }
}

/// The host of `HOST:PORT`, without the brackets of an IPv6 address.
fn host_of(endpoint: &str) -> &str {
    let host = endpoint.rsplit_once(':').map_or(endpoint, |(host, _)| host);
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

/// Whether a host is this machine, whatever a resolver answers.
pub(super) fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback())
}

/// A file with at least one certificate.
fn certificates(flag: &str, path: &Path) -> anyhow::Result<Vec<u8>> {
    let pem = read(flag, path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(pem),
        Ok(_) | Err(_) => Err(usage(format!("{flag}: there is no certificate in PEM in {}", path.display()))),
    }
}

fn read(flag: &str, path: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| usage(format!("{flag}: cannot read {}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_members_and_a_place() {
        let parse = |text: &str| text.parse::<EtcdAddress>();
        let three = parse("etcd://10.0.0.1:2379,etcd-2:2379,[::1]:2379/mesh/a").expect("an address");
        assert_eq!(three.endpoints, ["10.0.0.1:2379", "etcd-2:2379", "[::1]:2379"]);
        assert_eq!(three.prefix.to_string(), "/mesh/a/");
        assert_eq!(parse("etcd://e:1").expect("an address").prefix, EtcdPrefix::default());
        assert_eq!(parse("etcd://e:1/"), parse("etcd://e:1/starling"));
        for text in
            ["etcd://", "etcd://e", "etcd://e:0", "etcd://e:1,", "etcd://:1", "etcd://e:1/a b", "etcd://u:p@e:1"]
        {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_password_goes_to_another_machine_over_tls_only() {
        let environment = Environment { etcd_password: Some("secret".to_owned()), ..Environment::default() };
        let args = EtcdArgs { etcd_user: Some("mesh".to_owned()), ..EtcdArgs::default() };
        for remote in ["etcd://10.0.0.1:2379", "etcd://127.0.0.1:2379,etcd-2:2379", "etcd://localhost.example:2379"] {
            let address = remote.parse().expect("an address");
            let refused = args.options(&address, &environment).expect_err(remote).to_string();
            assert!(refused.contains("--etcd-ca-file") && !refused.contains("secret"), "{refused}");
            assert!(EtcdArgs::default().options(&address, &environment).is_ok(), "{remote} without a password");
        }
    }

    #[test]
    fn a_password_comes_from_a_file_or_the_environment() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("password");
        std::fs::write(&path, "of file\n").expect("written");
        let environment = Environment { etcd_password: Some("of environment".to_owned()), ..Environment::default() };
        let address = "etcd://127.0.0.1:1,[::1]:2,localhost:3".parse().expect("an address");
        let password = |args: &EtcdArgs, environment: &Environment| {
            let options = args.options(&address, environment)?;
            anyhow::Ok(options.credentials.map(|credentials| credentials.password))
        };
        let mut args = EtcdArgs { etcd_user: Some("mesh".to_owned()), ..EtcdArgs::default() };
        assert_eq!(password(&args, &environment).expect("given").as_deref(), Some("of environment"));
        assert!(password(&args, &Environment::default()).is_err());
        args.etcd_password_file = Some(path);
        assert_eq!(password(&args, &environment).expect("given").as_deref(), Some("of file"));
        assert_eq!(password(&EtcdArgs::default(), &environment).expect("none wanted"), None);
    }
}
