//! Flags of Consul's agent (<https://developer.hashicorp.com/consul/commands/agent>) that have no part here: taken, told, and passed over.

use clap::{Arg, ArgAction, ArgMatches, Command};

/// A flag by its name, the setting that it stands for, and whether it has a value.
const FLAGS: [(&str, &str, bool); 40] = [
    ("alt-domain", "alt_domain", true),
    ("auto-reload-config", "auto_reload_config", false),
    ("check_output_max_size", "check_output_max_size", true),
    ("default-query-time", "default_query_time", true),
    ("disable-host-node-id", "disable_host_node_id", false),
    ("disable-keyring-file", "disable_keyring_file", false),
    ("domain", "domain", true),
    ("encrypt", "encrypt", true),
    ("advertise-wan", "advertise_addr_wan", true),
    ("log-file", "log_file", true),
    ("log-rotate-bytes", "log_rotate_bytes", true),
    ("log-rotate-duration", "log_rotate_duration", true),
    ("log-rotate-max-files", "log_rotate_max_files", true),
    ("max-query-time", "max_query_time", true),
    ("non-voting-server", "non_voting_server", false),
    ("pid-file", "pid_file", true),
    ("primary-gateway", "primary_gateways", true),
    ("protocol", "protocol", true),
    ("raft-protocol", "raft_protocol", true),
    ("read-replica", "read_replica", false),
    ("recursor", "recursors", true),
    ("rejoin", "rejoin_after_leave", false),
    ("retry-interval", "retry_interval", true),
    ("retry-interval-wan", "retry_interval_wan", true),
    ("retry-join-wan", "retry_join_wan", true),
    ("retry-max", "retry_max", true),
    ("retry-max-wan", "retry_max_wan", true),
    ("segment", "segment", true),
    ("partition", "partition", true),
    ("serf-lan-allowed-cidrs", "serf_lan_allowed_cidrs", true),
    ("serf-lan-bind", "serf_lan", true),
    ("serf-lan-port", "ports.serf_lan", true),
    ("serf-wan-allowed-cidrs", "serf_wan_allowed_cidrs", true),
    ("serf-wan-bind", "serf_wan", true),
    ("serf-wan-port", "ports.serf_wan", true),
    ("server-port", "ports.server", true),
    ("syslog", "enable_syslog", false),
    ("ui", "ui_config.enabled", false),
    ("ui-content-path", "ui_content_path", true),
    ("ui-dir", "ui_dir", true),
];

/// A port; below 0 is for none.
pub(super) fn port(text: &str) -> Result<i64, String> {
    let port = text.parse().ok().filter(|port: &i64| *port <= i64::from(u16::MAX));
    port.ok_or_else(|| format!("a port is at most {}, and -1 is for none", u16::MAX))
}

/// Those that were given and that somebody may count on, by the settings that they stand for.
#[derive(Debug, Clone, Default)]
pub(super) struct Flags {
    pub(super) names: Vec<&'static str>,
}

impl clap::Args for Flags {
    /// They are not shown: who looks for flags looks for those that do something.
    fn augment_args(command: Command) -> Command {
        FLAGS.into_iter().fold(command, |command, (name, setting, has_value)| {
            let action = if has_value { ArgAction::Append } else { ArgAction::SetTrue };
            let flag = Arg::new(name).long(name).hide(true).action(action);
            command.arg(if setting.starts_with("ports.") {
                flag.value_parser(port).allow_negative_numbers(true)
            } else {
                flag
            })
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl clap::FromArgMatches for Flags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = FLAGS.iter().filter(|(name, setting, has_value)| {
            !setting.is_empty() && if *has_value { matches.contains_id(name) } else { matches.get_flag(name) }
        });
        Ok(Self { names: given.map(|(_, setting, _)| *setting).collect() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
