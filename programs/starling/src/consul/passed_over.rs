//! Flags of Consul's agent (<https://developer.hashicorp.com/consul/commands/agent>) that have no part here: taken, told, and passed over.

/// They are not shown: who looks for flags looks for those that do something.
#[derive(Debug, clap::Args)]
pub(super) struct Flags {
    #[arg(long, hide = true)]
    ui: bool,
    #[arg(long, hide = true, value_name = "DIR")]
    ui_dir: Option<String>,
    #[arg(long, hide = true, value_name = "PATH")]
    ui_content_path: Option<String>,
    #[arg(long, hide = true, value_name = "ADDRESS")]
    join: Vec<String>,
    #[arg(long, hide = true, value_name = "ADDRESS")]
    retry_join: Vec<String>,
    #[arg(long, hide = true, value_name = "ADDRESS")]
    retry_join_wan: Vec<String>,
    #[arg(long, hide = true, value_name = "DURATION")]
    retry_interval: Option<String>,
    #[arg(long, hide = true, value_name = "N")]
    retry_max: Option<String>,
    #[arg(long, hide = true, value_name = "KEY")]
    encrypt: Option<String>,
    #[arg(long, hide = true, value_name = "IP")]
    advertise_wan: Option<String>,
    #[arg(long, hide = true, value_name = "IP")]
    serf_lan_bind: Option<String>,
    #[arg(long, hide = true, value_name = "IP")]
    serf_wan_bind: Option<String>,
    #[arg(long, hide = true, value_name = "PORT")]
    serf_lan_port: Option<String>,
    #[arg(long, hide = true, value_name = "PORT")]
    serf_wan_port: Option<String>,
    #[arg(long, hide = true, value_name = "PORT")]
    server_port: Option<String>,
    #[arg(long, hide = true, value_name = "N")]
    raft_protocol: Option<String>,
    #[arg(long, hide = true, value_name = "N")]
    protocol: Option<String>,
    #[arg(long, hide = true, value_name = "FILE")]
    pid_file: Option<String>,
    #[arg(long, hide = true)]
    syslog: bool,
    #[arg(long, hide = true)]
    rejoin: bool,
    #[arg(long, hide = true)]
    leave_on_terminate: bool,
    #[arg(long, hide = true)]
    disable_host_node_id: bool,
    #[arg(long, hide = true)]
    disable_keyring_file: bool,
    #[arg(long, hide = true, value_name = "FILE")]
    log_file: Option<String>,
}

impl Flags {
    /// Whether they ask for members elsewhere.
    pub(super) fn seek_others(&self) -> bool {
        !self.join.is_empty() || !self.retry_join.is_empty() || !self.retry_join_wan.is_empty()
    }

    /// Those that were given and that somebody may count on.
    pub(super) fn names(&self) -> impl Iterator<Item = String> {
        let given = [
            ("ui_dir", self.ui_dir.is_some()),
            ("ui_content_path", self.ui_content_path.is_some()),
            ("start_join", !self.join.is_empty()),
            ("retry_join", !self.retry_join.is_empty()),
            ("retry_join_wan", !self.retry_join_wan.is_empty()),
            ("retry_interval", self.retry_interval.is_some()),
            ("retry_max", self.retry_max.is_some()),
            ("encrypt", self.encrypt.is_some()),
            ("advertise_addr_wan", self.advertise_wan.is_some()),
            ("serf_lan", self.serf_lan_bind.is_some()),
            ("serf_wan", self.serf_wan_bind.is_some()),
            ("ports.serf_lan", self.serf_lan_port.is_some()),
            ("ports.serf_wan", self.serf_wan_port.is_some()),
            ("ports.server", self.server_port.is_some()),
            ("raft_protocol", self.raft_protocol.is_some()),
            ("protocol", self.protocol.is_some()),
            ("pid_file", self.pid_file.is_some()),
            ("enable_syslog", self.syslog),
            ("rejoin_after_leave", self.rejoin),
            ("leave_on_terminate", self.leave_on_terminate),
            ("disable_host_node_id", self.disable_host_node_id),
            ("disable_keyring_file", self.disable_keyring_file),
            ("log_file", self.log_file.is_some()),
        ];
        // The UI is asked for by everyone; there is one or there is not, and nobody is the worse for it.
        let _ = self.ui;
        given.into_iter().filter(|(_, is_given)| *is_given).map(|(name, _)| name.to_owned())
    }
}
