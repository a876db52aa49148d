//! Which listeners a process opens. One that is disabled does not exist: it is bound at no address, hidden or not.

use std::net::SocketAddr;

use clap::ValueEnum;

use crate::outcome::usage;

/// A listener that can be disabled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Listener {
    /// The HTTP API in plaintext, at its ports.
    Http,
    /// xDS in plaintext.
    Grpc,
    /// The port for agents, and xDS over TLS.
    GrpcTls,
    /// DNS over UDP and TCP.
    Dns,
}

/// Listeners that are not opened.
#[derive(Debug, Clone, Default, PartialEq, Eq, clap::Args)]
pub(crate) struct ListenerArgs {
    /// Do not open these listeners: one, or several with commas between them
    #[arg(long, value_enum, value_name = "LISTENER", value_delimiter = ',')]
    disable_listener: Vec<Listener>,
}

impl ListenerArgs {
    /// Whether the listener is opened.
    pub(crate) fn opens(&self, listener: Listener) -> bool {
        !self.disable_listener.contains(&listener)
    }

    /// The addresses at which the listener is opened: none if it is disabled.
    pub(crate) fn opened<'a>(&self, listener: Listener, addresses: &'a [SocketAddr]) -> &'a [SocketAddr] {
        if self.opens(listener) { addresses } else { &[] }
    }

    /// Refuses a demo without the listeners that it uses.
    ///
    /// # Errors
    /// If any listener is disabled.
    pub(crate) fn judge_demo(&self) -> anyhow::Result<()> {
        match self.disable_listener.is_empty() {
            true => Ok(()),
            false => Err(usage("--disable-listener: the demo uses every listener; leave out one of the two flags")),
        }
    }
}
