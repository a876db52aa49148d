//! The flags that say which API is meant, the same for every command that speaks to it.

use std::path::PathBuf;

/// Which API is meant, and with what rights.
#[derive(Debug, Clone, Default, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = "API")]
pub(crate) struct ApiArgs {
    /// Where the API is: HOST:PORT, a URL, or unix://PATH [default: STARLING_HTTP_ADDR, CONSUL_HTTP_ADDR, or
    /// 127.0.0.1:8500]
    #[arg(long, value_name = "ADDR")]
    pub(crate) http_addr: Option<String>,

    /// Token sent with every request [default: STARLING_HTTP_TOKEN or CONSUL_HTTP_TOKEN]
    #[arg(long, value_name = "TOKEN", conflicts_with = "token_file")]
    pub(crate) token: Option<String>,

    /// File that holds the token [default: STARLING_HTTP_TOKEN_FILE or CONSUL_HTTP_TOKEN_FILE]
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,

    /// For https: the CA certificates that the API's certificate must chain to [default: STARLING_CACERT or
    /// CONSUL_CACERT]
    #[arg(long, value_name = "FILE")]
    pub(crate) ca_file: Option<PathBuf>,

    /// A directory of such files, if there is no --ca-file [default: STARLING_CAPATH or CONSUL_CAPATH]
    #[arg(long, value_name = "DIR")]
    pub(crate) ca_path: Option<PathBuf>,

    /// For https: the certificate that the client shows [default: STARLING_CLIENT_CERT or CONSUL_CLIENT_CERT]
    #[arg(long, value_name = "FILE")]
    pub(crate) client_cert: Option<PathBuf>,

    /// Its private key [default: STARLING_CLIENT_KEY or CONSUL_CLIENT_KEY]
    #[arg(long, value_name = "FILE")]
    pub(crate) client_key: Option<PathBuf>,

    /// For https: the name in the API's certificate, if it is not the host's [default: STARLING_TLS_SERVER_NAME or
    /// CONSUL_TLS_SERVER_NAME]
    #[arg(long, value_name = "NAME")]
    pub(crate) tls_server_name: Option<String>,

    /// The datacentre that is meant; the API refuses any but its own
    #[arg(long, value_name = "NAME")]
    pub(crate) datacenter: Option<String>,

    /// The namespace that is meant; the API has `default` alone [default: STARLING_NAMESPACE or CONSUL_NAMESPACE]
    #[arg(long, value_name = "NAME")]
    pub(crate) namespace: Option<String>,

    /// The partition that is meant; the API has `default` alone [default: STARLING_PARTITION or CONSUL_PARTITION]
    #[arg(long, value_name = "NAME")]
    pub(crate) partition: Option<String>,

    /// Let any server answer a read, perhaps with what was true a moment ago
    #[arg(long)]
    pub(crate) stale: bool,
}

impl ApiArgs {
    /// These flags; where one is not given, the one in front of the command. Flags that mean one thing together come
    /// from the same place.
    pub(crate) fn over(&self, front: &Self) -> Self {
        let token_from = if self.token.is_some() || self.token_file.is_some() { self } else { front };
        let ca_from = if self.ca_file.is_some() || self.ca_path.is_some() { self } else { front };
        Self {
            http_addr: self.http_addr.clone().or_else(|| front.http_addr.clone()),
            token: token_from.token.clone(),
            token_file: token_from.token_file.clone(),
            ca_file: ca_from.ca_file.clone(),
            ca_path: ca_from.ca_path.clone(),
            client_cert: self.client_cert.clone().or_else(|| front.client_cert.clone()),
            client_key: self.client_key.clone().or_else(|| front.client_key.clone()),
            tls_server_name: self.tls_server_name.clone().or_else(|| front.tls_server_name.clone()),
            datacenter: self.datacenter.clone().or_else(|| front.datacenter.clone()),
            namespace: self.namespace.clone().or_else(|| front.namespace.clone()),
            partition: self.partition.clone().or_else(|| front.partition.clone()),
            stale: self.stale || front.stale,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_behind_the_command_win_and_pairs_stay_together() {
        let front = ApiArgs {
            http_addr: Some("front:1".to_owned()),
            token_file: Some("front-token".into()),
            ca_file: Some("front.pem".into()),
            stale: true,
            ..ApiArgs::default()
        };
        let behind = ApiArgs {
            token: Some("behind".to_owned()),
            ca_path: Some("behind".into()),
            datacenter: Some("dc1".to_owned()),
            ..ApiArgs::default()
        };
        let merged = behind.over(&front);
        let expected = ApiArgs { http_addr: front.http_addr.clone(), stale: true, ..behind.clone() };
        assert_eq!(merged, expected);
        assert_eq!(ApiArgs::default().over(&front), front);
    }
}
