//! `starling redirect`: has the kernel lead an application's connections to its proxy.
//!
//! Owns the command line of it, and what is shown. The rules are made in `rules`, told to the kernel in `nft`, and read
//! back in `installed`.

mod installed;
mod network;
mod nft;
mod rules;

use std::fmt::Write;

use serde::Serialize;

use crate::outcome::{Outcome, usage};
use crate::print::{self, Format, OutputArgs};
use crate::redirect::installed::Installed;
use crate::redirect::network::Network;
use crate::redirect::rules::{Mode, PortRange, Rules};

/// Lead the connections of this machine's applications through their proxy, on Linux
///
/// Needs the program nft and the right to filter packets (root, or CAP_NET_ADMIN). All rules are in one table of nftables,
/// `inet starling`, which comes and goes as a whole. It is of the network namespace in which the command runs.
#[derive(Debug, clap::Args)]
pub(crate) struct RedirectArgs {
    #[command(subcommand)]
    command: RedirectCommand,
}

#[derive(Debug, clap::Subcommand)]
enum RedirectCommand {
    Install(InstallArgs),
    /// Take the rules away; nothing happens if there are none
    Remove,
    Show(ShowArgs),
}

/// Put the rules in place, instead of those that are there
#[derive(Debug, clap::Args)]
struct InstallArgs {
    /// User, by number, as whom the proxy runs: its own connections are left alone; may be given again
    #[arg(long, value_name = "UID", required = true)]
    proxy_uid: Vec<u32>,

    /// Port at which the proxy takes what applications call
    #[arg(long, alias = "proxy-outbound-port", value_name = "PORT", default_value_t = 15_001, value_parser = port())]
    outbound_port: u16,

    /// Port at which the proxy takes what applications are sent
    #[arg(long, alias = "proxy-inbound-port", value_name = "PORT", default_value_t = 15_006, value_parser = port())]
    inbound_port: u16,

    /// How what applications are sent reaches the proxy
    #[arg(long, value_enum, default_value_t)]
    mode: Mode,

    /// Leave calls to this port, or these (8000-8099), alone; may be given again
    #[arg(long, alias = "exclude-outbound-port", value_name = "PORT")]
    exclude_port: Vec<PortRange>,

    /// Leave calls to this network, such as 10.0.0.0/8 or fd00::/8, alone; may be given again
    #[arg(long, alias = "exclude-outbound-cidr", value_name = "NETWORK")]
    exclude_cidr: Vec<Network>,

    /// Leave what this user, by number, calls alone; may be given again
    #[arg(long, value_name = "UID")]
    exclude_uid: Vec<u32>,

    /// Leave what is sent to this port, or these, alone; may be given again. 22 (SSH) always is
    #[arg(long, value_name = "PORT")]
    exclude_inbound_port: Vec<PortRange>,

    /// Lead what is sent to port 22 through the proxy, too
    #[arg(long)]
    capture_ssh: bool,

    /// Print the rules and change nothing
    #[arg(long)]
    dry_run: bool,
}

/// Show what is in place; exits 1 if nothing is
#[derive(Debug, clap::Args)]
struct ShowArgs {
    #[command(flatten)]
    output: OutputArgs,
}

fn port() -> clap::builder::RangedI64ValueParser<u16> {
    clap::value_parser!(u16).range(1..)
}

/// What `show -o json` prints.
#[derive(Debug, Serialize)]
struct Shown<'a> {
    installed: bool,
    #[serde(flatten)]
    rules: Option<&'a Installed>,
}

pub(crate) fn run(args: RedirectArgs) -> anyhow::Result<Outcome> {
    match args.command {
        RedirectCommand::Install(args) => install(args),
        RedirectCommand::Remove => {
            nft::run(rules::REMOVAL)?;
            Ok(Outcome::Done)
        }
        RedirectCommand::Show(args) => show(&args),
    }
}

fn install(args: InstallArgs) -> anyhow::Result<Outcome> {
    if args.inbound_port == args.outbound_port {
        return Err(usage("--inbound-port and --outbound-port are two ports"));
    }
    let rules = Rules {
        proxy_users: args.proxy_uid,
        outbound_port: args.outbound_port,
        inbound_port: args.inbound_port,
        mode: args.mode,
        excluded_ports: args.exclude_port,
        excluded_networks: args.exclude_cidr,
        excluded_users: args.exclude_uid,
        excluded_inbound_ports: args.exclude_inbound_port,
        capture_ssh: args.capture_ssh,
    };
    let script = rules.render();
    if args.dry_run {
        print::line(script.trim_end())?;
    } else {
        nft::run(&script)?;
    }
    Ok(Outcome::Done)
}

fn show(args: &ShowArgs) -> anyhow::Result<Outcome> {
    let listing = nft::list()?;
    let installed = listing.as_deref().map(Installed::parse).transpose()?;
    match (args.output.format, &installed) {
        (Format::Json, rules) => print::json(&Shown { installed: rules.is_some(), rules: rules.as_ref() })?,
        (Format::Table, None) => print::line("nothing is led through a proxy here")?,
        (Format::Table, Some(rules)) => print::line(table(rules).trim_end())?,
    }
    Ok(if installed.is_some() { Outcome::Done } else { Outcome::No })
}

/// One line a property.
fn table(rules: &Installed) -> String {
    let mut table = String::new();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(table, "{name:<24}{value}");
    };
    let list = |items: &[String]| if items.is_empty() { "none".to_owned() } else { items.join(", ") };
    line("Outbound", format!("to port {}, {} connections so far", rules.outbound_port, rules.outbound_connections));
    let inbound =
        format!("to port {} by {}, {} connections so far", rules.inbound_port, rules.mode, rules.inbound_connections);
    line("Inbound", inbound);
    line("Proxy's users", list(&rules.proxy_users));
    line("Excluded users", list(&rules.excluded_users));
    line("Excluded networks", list(&rules.excluded_networks));
    line("Excluded ports", list(&rules.excluded_ports));
    line("Excluded inbound ports", list(&rules.excluded_inbound_ports));
    table
}
