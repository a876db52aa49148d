//! Commands of Consul's that there are not, and what to do in their place.

use std::ffi::OsString;

/// The words of a command, and why there is none.
const REFUSED: [(&[&str], &str); 26] = [
    (&["exec"], "nothing is run on other nodes through the mesh; use ssh, or what deploys your programs"),
    (&["keyring"], "there is no gossip, and so no key of it: agents speak to servers over mutual TLS"),
    (&["keygen"], "there is no gossip, and so no key of it; join tokens are made by `starling token create --join`"),
    (&["join"], "nodes join by a token: `consul agent -retry-join HOST -join-token-file FILE`, or `starling agent`"),
    (&["peering"], "there is one datacentre, and no peering"),
    (&["resource"], "there is no second API of resources; config entries are written by `consul config write`"),
    (&["tls"], "the mesh has a CA of its own, which every node's certificate is of: `starling ca --help`"),
    (&["rtt"], "round trips between nodes are not estimated: there is no gossip"),
    (
        &["troubleshoot"],
        "ask `starling can SRC DST` whether a call may pass, and `starling changes` who has applied a change",
    ),
    (&["hcp"], "nothing here is linked to HashiCorp's cloud; leave it out"),
    (&["license"], "nothing here needs a licence"),
    (&["namespace"], "there is one namespace, `default`"),
    (&["partition"], "there is one partition, `default`"),
    (&["audit"], "there is no audit log; requests are in the log of the agent at the level debug"),
    (&["operator", "area"], "there is one datacentre, and so no network area"),
    (&["operator", "raft", "remove-peer"], "servers vote on nothing: one that is stopped is gone after its grace"),
    (
        &["operator", "raft", "transfer-leader"],
        "servers vote on nothing: `starling server leave` on the one that leads",
    ),
    (
        &["operator", "utilization"],
        "nothing here is counted for a licence; `consul operator usage instances` says what there is",
    ),
    (&["snapshot", "decode"], "a snapshot is not of raft's log: `consul snapshot inspect FILE` says what is in it"),
    (&["snapshot", "agent"], "run `consul snapshot save` by a timer of the system"),
    (&["acl", "translate-rules"], "rules are read in the form of Consul 1.4 and later alone"),
    (
        &["connect", "expose"],
        "write an ingress-gateway with its listeners by `starling config write FILE`, and `starling intention create -allow GATEWAY SERVICE`",
    ),
    (
        &["services", "export"],
        "there is one datacentre and one partition, and nobody else to whom a service could be exported",
    ),
    (&["services", "exported-services"], "there is one datacentre and one partition, and nothing is exported"),
    (&["services", "imported-services"], "there is one datacentre and one partition, and nothing is imported"),
    (&["connect", "redirect-traffic"], "`starling redirect` sends traffic through the proxies of this machine"),
];

/// The name of a command that is refused, and why, if these words begin with one.
pub(super) fn reason(words: &[OsString]) -> Option<(String, &'static str)> {
    let found = REFUSED.iter().find(|(command, _)| {
        command.len() <= words.len() && command.iter().zip(words).all(|(word, given)| given == word)
    });
    found.map(|(command, reason)| (command.join(" "), *reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_refused_by_all_of_its_words() {
        let said = |line: &str| reason(&line.split(' ').map(OsString::from).collect::<Vec<_>>()).map(|(name, _)| name);
        assert_eq!(said("exec -node n1 uptime").as_deref(), Some("exec"));
        assert_eq!(said("snapshot decode x.snap").as_deref(), Some("snapshot decode"));
        assert_eq!(said("snapshot save x.snap"), None);
        assert_eq!(said("operator raft list-peers"), None);
        assert_eq!(said("operator raft"), None);
        assert_eq!(said("services export -name web -consumer-peers p").as_deref(), Some("services export"));
        assert_eq!(said("connect expose -service web").as_deref(), Some("connect expose"));
        assert_eq!(said("connect envoy -sidecar-for web"), None);
    }
}
