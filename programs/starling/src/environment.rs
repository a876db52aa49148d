//! The process's environment, as far as the command line heeds it: read once, then passed down.
//!
//! A variable that begins with `STARLING_` wins over Consul's of the same meaning. One that is set to nothing counts as
//! not set.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::client::Authorities;
use crate::lifeline;

/// The variables that are heeded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Environment {
    /// `STARLING_HTTP_ADDR`, `CONSUL_HTTP_ADDR`: where the API is.
    pub(crate) http_addr: Option<String>,
    /// `STARLING_HTTP_TOKEN`, `CONSUL_HTTP_TOKEN`: sent with every request.
    pub(crate) token: Option<String>,
    /// `STARLING_HTTP_TOKEN_FILE`, `CONSUL_HTTP_TOKEN_FILE`: the file that holds the token.
    pub(crate) token_file: Option<PathBuf>,
    /// `STARLING_HTTP_AUTH`, `CONSUL_HTTP_AUTH`: a name and a password, with a colon between them, for a proxy in front of the API.
    pub(crate) http_auth: Option<String>,
    /// `STARLING_HTTP_SSL`, `CONSUL_HTTP_SSL`: whether an address without scheme means HTTPS.
    pub(crate) ssl: Option<String>,
    /// `STARLING_HTTP_SSL_VERIFY`, `CONSUL_HTTP_SSL_VERIFY`: whether the API's certificate is checked.
    pub(crate) ssl_verify: Option<String>,
    /// `STARLING_CACERT`, `CONSUL_CACERT`, or `_CAPATH`: the CA certificates that the API's must chain to.
    pub(crate) authorities: Option<Authorities>,
    /// `STARLING_CLIENT_CERT`, `CONSUL_CLIENT_CERT`: the certificate that the client shows.
    pub(crate) client_cert: Option<PathBuf>,
    /// `STARLING_CLIENT_KEY`, `CONSUL_CLIENT_KEY`: its private key.
    pub(crate) client_key: Option<PathBuf>,
    /// `STARLING_TLS_SERVER_NAME`, `CONSUL_TLS_SERVER_NAME`: the name in the API's certificate.
    pub(crate) tls_server_name: Option<String>,
    /// `STARLING_GRPC_ADDR`, `CONSUL_GRPC_ADDR`: where xDS is served.
    pub(crate) grpc_addr: Option<String>,
    /// `STARLING_GRPC_CACERT`, `CONSUL_GRPC_CACERT`, or `_GRPC_CAPATH`: the CA certificates that xDS's must chain to.
    pub(crate) grpc_authorities: Option<Authorities>,
    /// `STARLING_NAMESPACE`, `CONSUL_NAMESPACE`: the namespace that is meant.
    pub(crate) namespace: Option<String>,
    /// `STARLING_PARTITION`, `CONSUL_PARTITION`: the partition that is meant.
    pub(crate) partition: Option<String>,
    /// `CONNECT_SIDECAR_FOR`: the service whose sidecar Envoy shall be.
    pub(crate) sidecar_for: Option<String>,
    /// `CONNECT_PROXY_ID`: the sidecar that Envoy shall be.
    pub(crate) proxy_id: Option<String>,
    /// `STARLING_ENVOY`: the Envoy binary.
    pub(crate) envoy: Option<PathBuf>,
    /// `STARLING_JOIN_TOKEN`: what lets an agent in the first time.
    pub(crate) join_token: Option<String>,
    /// `STARLING_ETCD_PASSWORD`: of the user of etcd.
    pub(crate) etcd_password: Option<String>,
    /// `STARLING_LOG`: what is logged by commands without a flag for it.
    pub(crate) log: Option<String>,
    /// `STARLING_ENDS_WITH`: the parent that this process ends with; set for the children of the demo.
    pub(crate) ends_with: Option<i32>,
    /// `PATH`.
    pub(crate) path: Option<OsString>,
}

impl Environment {
    /// Takes what is heeded from wherever `lookup` finds variables.
    pub(crate) fn read(lookup: impl Fn(&str) -> Option<OsString>) -> Self {
        let given = |name: &str| lookup(name).filter(|value| !value.is_empty());
        let text = |name: &str| given(name).map(|value| value.to_string_lossy().into_owned());
        let either = |name: &str| text(&format!("STARLING_{name}")).or_else(|| text(&format!("CONSUL_{name}")));
        // Of two variables that say the same thing in different ways, both are taken from the same owner.
        let either_of = |names: [&str; 2]| {
            let of = |owner: &str| names.map(|name| text(&format!("{owner}_{name}")));
            let own = of("STARLING");
            if own.iter().any(Option::is_some) { own } else { of("CONSUL") }
        };
        let authorities = |names: [&str; 2]| {
            let [file, directory] = either_of(names).map(|value| value.map(PathBuf::from));
            Authorities::given(file, directory)
        };
        let [token, token_file] = either_of(["HTTP_TOKEN", "HTTP_TOKEN_FILE"]);
        Self {
            http_addr: either("HTTP_ADDR"),
            token,
            token_file: token_file.map(PathBuf::from),
            http_auth: either("HTTP_AUTH"),
            ssl: either("HTTP_SSL"),
            ssl_verify: either("HTTP_SSL_VERIFY"),
            authorities: authorities(["CACERT", "CAPATH"]),
            client_cert: either("CLIENT_CERT").map(PathBuf::from),
            client_key: either("CLIENT_KEY").map(PathBuf::from),
            tls_server_name: either("TLS_SERVER_NAME"),
            grpc_addr: either("GRPC_ADDR"),
            grpc_authorities: authorities(["GRPC_CACERT", "GRPC_CAPATH"]),
            namespace: either("NAMESPACE"),
            partition: either("PARTITION"),
            sidecar_for: text("CONNECT_SIDECAR_FOR"),
            proxy_id: text("CONNECT_PROXY_ID"),
            envoy: given("STARLING_ENVOY").map(PathBuf::from),
            join_token: text("STARLING_JOIN_TOKEN"),
            etcd_password: text("STARLING_ETCD_PASSWORD"),
            log: text("STARLING_LOG"),
            ends_with: given(lifeline::VARIABLE).and_then(|value| value.to_str()?.parse().ok()),
            path: given("PATH"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(pairs: &[(&str, &str)]) -> Environment {
        Environment::read(|name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value)))
    }

    #[test]
    fn our_own_variable_wins_over_consuls() {
        let both = [("CONSUL_HTTP_ADDR", "10.0.0.1:8500"), ("STARLING_HTTP_ADDR", "10.0.0.2:8500")];
        assert_eq!(environment(&both).http_addr.as_deref(), Some("10.0.0.2:8500"));
        assert_eq!(environment(&both[..1]).http_addr.as_deref(), Some("10.0.0.1:8500"));
    }

    #[test]
    fn our_own_way_of_saying_it_wins_over_consuls() {
        let mixed = [
            ("STARLING_HTTP_TOKEN_FILE", "own"),
            ("CONSUL_HTTP_TOKEN", "consul"),
            ("STARLING_CAPATH", "own"),
            ("CONSUL_CACERT", "consul"),
            ("CONSUL_GRPC_CACERT", "consul"),
        ];
        let expected = Environment {
            token_file: Some("own".into()),
            authorities: Some(Authorities::Directory("own".into())),
            grpc_authorities: Some(Authorities::File("consul".into())),
            ..Environment::default()
        };
        assert_eq!(environment(&mixed), expected);
    }

    #[test]
    fn a_variable_set_to_nothing_is_not_set() {
        assert_eq!(environment(&[("STARLING_HTTP_TOKEN", ""), ("PATH", "")]), Environment::default());
    }
}
