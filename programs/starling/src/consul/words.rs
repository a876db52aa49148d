//! What is said under the name of Consul: commands by the name under which they were started, and settings by Consul's.

use std::borrow::Cow;
use std::sync::OnceLock;

/// Who speaks, of the commands of this name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Speaker {
    /// The agent, or who judges its configuration.
    Agent,
    /// Any other command.
    Command,
}

/// Who this process is; empty where it has not the name.
static SPEAKER: OnceLock<Speaker> = OnceLock::new();

/// Commands that are something else under this name, or nothing.
const OTHERWISE: [&str; 4] = ["agent", "dev", "help", "server"];

/// Variables that have Consul's name, too.
const VARIABLES: [(&str, &str); 2] =
    [("STARLING_HTTP_ADDR", "CONSUL_HTTP_ADDR"), ("STARLING_HTTP_TOKEN", "CONSUL_HTTP_TOKEN")];

/// What a server or an agent is told by its own flags, and under this name by Consul's flags and settings. A name that begins like
/// another comes before it.
const SETTINGS: [(&str, &str); 17] = [
    ("--http-addr", "ports.http (-http-port)"),
    ("--https-addr", "ports.https (-https-port)"),
    ("--https-cert-file", "tls.https.cert_file"),
    ("--https-key-file", "tls.https.key_file"),
    ("--https-client-ca-file", "tls.https.ca_file"),
    ("--http-socket-user", "unix_sockets.user"),
    ("--http-socket-group", "unix_sockets.group"),
    ("--http-socket-mode", "unix_sockets.mode"),
    ("--http-socket", "addresses.http"),
    ("--dns-addr", "ports.dns (-dns-port)"),
    ("--grpc-tls-addr", "ports.grpc_tls (-grpc-tls-port)"),
    ("--grpc-addr", "ports.grpc (-grpc-port)"),
    ("--advertise-addr", "advertise_addr (-advertise)"),
    ("--node-name", "node_name (-node)"),
    ("--data-dir", "data_dir (-data-dir)"),
    ("--log-level", "log_level (-log-level)"),
    ("--server", "retry_join (-retry-join)"),
];

/// From now on this process speaks so.
pub(super) fn begin(speaker: Speaker) {
    // The first word counts: a process is one command.
    let _ = SPEAKER.set(speaker);
}

/// Whether this process was started under the name.
pub(crate) fn is_speaking() -> bool {
    SPEAKER.get().is_some()
}

/// A text as it is said under the name that this process has.
pub(crate) fn worded(text: &str) -> Cow<'_, str> {
    SPEAKER.get().map_or(Cow::Borrowed(text), |speaker| Cow::Owned(worded_by(*speaker, text)))
}

fn worded_by(speaker: Speaker, text: &str) -> String {
    let mut parts = text.split("`starling ");
    let mut worded = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let command = part.split([' ', '`']).next().unwrap_or_default();
        worded.push_str(if OTHERWISE.contains(&command) { "`starling " } else { "`consul " });
        worded.push_str(part);
    }
    let settings = if speaker == Speaker::Agent { &SETTINGS[..] } else { &[] };
    for (own, consuls) in VARIABLES.iter().chain(settings) {
        worded = worded.replace(own, consuls);
    }
    worded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_variables_and_settings_have_the_names_under_which_they_are_known() {
        let said = |text: &str| worded_by(Speaker::Command, text);
        assert_eq!(said("try `starling nodes`, or `starling kv get a`"), "try `consul nodes`, or `consul kv get a`");
        let shared = "several share a store: `starling server --store etcd://HOST:PORT` on each";
        assert_eq!(said(shared), shared, "no command of this name");
        assert_eq!(
            said("--http-addr and STARLING_HTTP_ADDR name another address"),
            "--http-addr and CONSUL_HTTP_ADDR name another address"
        );
        let agent = worded_by(Speaker::Agent, "is another starling running? choose another with --grpc-tls-addr");
        assert_eq!(agent, "is another starling running? choose another with ports.grpc_tls (-grpc-tls-port)");
        assert_eq!(worded("`starling nodes`"), "`starling nodes`", "a process without the name");
    }

    #[test]
    fn a_setting_is_not_taken_for_another_that_begins_like_it() {
        for (index, (own, _)) in SETTINGS.iter().enumerate() {
            let before = SETTINGS.iter().take(index).find(|(earlier, _)| own.starts_with(earlier));
            assert_eq!(before, None, "{own}");
        }
    }
}
