//! The machines of the cluster: a network namespace for each, on one bridge, and the packets between them that are lost.
//!
//! What is cut is cut by nftables in the namespace of the receiver: its packets from the other one are dropped. Connections
//! are not told; they stall, as they do when a cable is pulled. Clients are in the namespace of the run, on the bridge.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};
use nix::unistd::{Pid, Uid};

/// What the names of our namespaces begin with; the process id of the run follows.
const PREFIX: &str = "starling-chaos-";

/// What a namespace's rules are in.
const TABLE: &str = "starling_chaos";

/// The third bytes of 198.18.0.0/15, the range for tests of networks (RFC 2544), of which a run takes one.
const SUBNETS: u32 = 250;

/// Which machine; they are numbered from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Machine(pub(crate) usize);

/// Packets of one machine that another one never gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) from: Machine,
    pub(crate) to: Machine,
}

/// A cut that is in force, to be mended by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CutId(u64);

/// Namespaces, bridge and cables. Dropping it removes them.
#[derive(Debug)]
pub(crate) struct Network {
    run: u32,
    subnet: u32,
    machines: usize,
    nft: PathBuf,
    cuts: BTreeMap<CutId, Vec<Cut>>,
    next: u64,
}

impl Network {
    /// Makes a network of so many machines.
    ///
    /// # Errors
    /// What is missing for it.
    pub(crate) fn build(machines: usize) -> anyhow::Result<Self> {
        ensure!(Uid::effective().is_root(), "namespaces and packet rules need root: run it with sudo");
        let nft = nft().context("the program nft is missing; `cargo xtask install nftables` gets it")?;
        let run = std::process::id();
        ip("-V").context("the program ip is missing; `cargo xtask install nftables` gets it")?;
        sweep();
        let mut network = Self { run, subnet: free_subnet(run)?, machines: 0, nft, cuts: BTreeMap::new(), next: 0 };
        network.lay(machines).context("this kernel gives no network namespaces on a bridge")?;
        Ok(network)
    }

    fn lay(&mut self, machines: usize) -> anyhow::Result<()> {
        let bridge = self.bridge();
        ip(&format!("link add {bridge} type bridge"))?;
        ip(&format!("address add {}/24 dev {bridge}", self.address_of_clients()))?;
        ip(&format!("link set {bridge} up"))?;
        for number in 0..machines {
            let machine = Machine(number);
            let (namespace, cable) = (self.namespace(machine), self.cable(machine));
            self.machines = number + 1;
            ip(&format!("netns add {namespace}"))?;
            ip(&format!("link add {cable} type veth peer name eth0 netns {namespace}"))?;
            ip(&format!("link set {cable} master {bridge} up"))?;
            ip(&format!("-n {namespace} address add {}/24 dev eth0", self.address(machine)))?;
            ip(&format!("-n {namespace} link set eth0 up"))?;
            ip(&format!("-n {namespace} link set lo up"))?;
        }
        // Whether packets can be dropped at all is better found out now than at the first fault.
        (0..machines).try_for_each(|number| self.enforce(Machine(number)))
    }

    /// A command that runs `program` on a machine.
    pub(crate) fn command(&self, machine: Machine, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace(machine)]).arg(program);
        command
    }

    pub(crate) fn address(&self, machine: Machine) -> Ipv4Addr {
        // Below the clients' address, and a handful.
        self.host(u8::try_from(machine.0 + 1).unwrap_or(u8::MAX))
    }

    fn address_of_clients(&self) -> Ipv4Addr {
        self.host(254)
    }

    fn host(&self, last: u8) -> Ipv4Addr {
        let subnet = u8::try_from(self.subnet).unwrap_or_default();
        Ipv4Addr::new(198, 18, subnet, last)
    }

    /// Loses those packets from now on.
    pub(crate) fn cut(&mut self, cuts: Vec<Cut>) -> anyhow::Result<CutId> {
        let id = CutId(self.next);
        self.next += 1;
        let receivers = receivers(&cuts);
        self.cuts.insert(id, cuts);
        receivers.into_iter().try_for_each(|machine| self.enforce(machine))?;
        Ok(id)
    }

    /// Loses them no more, unless another cut does.
    pub(crate) fn mend(&mut self, id: CutId) -> anyhow::Result<()> {
        let cuts = self.cuts.remove(&id).unwrap_or_default();
        receivers(&cuts).into_iter().try_for_each(|machine| self.enforce(machine))
    }

    /// Puts the rules of one machine in force, in one transaction of nftables.
    fn enforce(&self, machine: Machine) -> anyhow::Result<()> {
        let cuts = self.cuts.values().flatten().filter(|cut| cut.to == machine);
        let senders: BTreeSet<_> = cuts.map(|cut| self.address(cut.from).to_string()).collect();
        let senders = Vec::from_iter(senders).join(", ");
        let rule = if senders.is_empty() { String::new() } else { format!("ip saddr {{ {senders} }} drop") };
        let rules = format!(
            "table inet {TABLE} {{}}\ndelete table inet {TABLE}\n\
             table inet {TABLE} {{ chain input {{ type filter hook input priority 0; policy accept; {rule}\n }}\n }}\n"
        );
        let mut command = self.command(machine, &self.nft);
        let child =
            command.args(["-f", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        let mut child = child.context("cannot run nft")?;
        child.stdin.take().context("a pipe to nft")?.write_all(rules.as_bytes()).context("cannot write to nft")?;
        let output = child.wait_with_output().context("cannot wait for nft")?;
        ensure!(output.status.success(), "nft: {}", String::from_utf8_lossy(&output.stderr).trim());
        Ok(())
    }

    fn namespace(&self, machine: Machine) -> String {
        format!("{PREFIX}{}-{}", self.run, machine.0)
    }

    fn bridge(&self) -> String {
        format!("sc{}b", self.run)
    }

    fn cable(&self, machine: Machine) -> String {
        format!("sc{}-{}", self.run, machine.0)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // What cannot be removed now is by the next run. The cables go with their namespaces.
        for number in 0..self.machines {
            let _ = ip(&format!("netns delete {}", self.namespace(Machine(number))));
        }
        let _ = ip(&format!("link delete {}", self.bridge()));
    }
}

fn receivers(cuts: &[Cut]) -> BTreeSet<Machine> {
    cuts.iter().map(|cut| cut.to).collect()
}

/// Where nft is: users other than root have it not in their search path, and root without a login neither.
fn nft() -> Option<PathBuf> {
    let is_there = |program: &Path| Command::new(program).arg("--version").output().is_ok();
    ["nft", "/usr/sbin/nft"].into_iter().map(PathBuf::from).find(|program| is_there(program))
}

/// Runs `ip` and gives what it says.
fn ip(arguments: &str) -> anyhow::Result<String> {
    let output = Command::new("ip").args(arguments.split_ascii_whitespace()).output().context("cannot run ip")?;
    if !output.status.success() {
        bail!("ip {arguments}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn free_subnet(run: u32) -> anyhow::Result<u32> {
    let taken = ip("-4 -o address")?;
    let free = (0..SUBNETS).map(|offset| (run + offset) % SUBNETS).find(|n| !taken.contains(&format!(" 198.18.{n}.")));
    free.context("all of 198.18.0.0/16 is in use on this machine")
}

/// Removes what a run that was killed has left: programs, namespaces, bridge.
fn sweep() {
    let namespaces = ip("netns list").unwrap_or_default();
    for line in namespaces.lines() {
        let name = line.split_ascii_whitespace().next().unwrap_or_default();
        let Some((run, _)) = name.strip_prefix(PREFIX).and_then(|rest| rest.split_once('-')) else { continue };
        if Path::new("/proc").join(run).exists() {
            continue;
        }
        for pid in ip(&format!("netns pids {name}")).unwrap_or_default().split_ascii_whitespace() {
            if let Ok(pid) = pid.parse() {
                // It may be gone by now.
                let _ = nix::sys::signal::kill(Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL);
            }
        }
        let _ = ip(&format!("netns delete {name}"));
        let _ = ip(&format!("link delete sc{run}b"));
    }
}
