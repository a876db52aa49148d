//! Runs the transcripts in `tests/scenarios`: what a client says, and what it must be told.
//!
//! A line that begins with `<` (response) or `!` (report) is checked, every other is played. `STARLING_GOLDEN=rewrite` rewrites the
//! checked lines. The language:
//!
//! | Line | Meaning |
//! |---|---|
//! | `delta`, `sotw` | a new stream of this variant; the client keeps what it has |
//! | `resources 3 cds:db@1>eds:db rds:web@1->db` | the set of revision 3: kind, name, content, `>` child, `->` cluster |
//! | `> cds`, `> eds +db -api` | a request that names nothing, or subscribes and unsubscribes |
//! | `> cds have db@1` | … that brings what the client has from an earlier stream |
//! | `> eds = db api` | state of the world: a request that lists names, with the last version |
//! | `> cds ack`, `> cds nack TEXT` | answers the last response of the kind |
//! | `> cds stale` | answers a response before the last |

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use envoy_types::pb::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest};
use envoy_types::pb::google::rpc::Status;
use starling_model::Revision;
use starling_xds::{AdsSession, Flavour, Report, Resource, ResourceSet, ResourceType, Response, Version};

#[test]
fn transcripts_hold() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios");
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty());
    let mut failed = Vec::new();
    for path in paths {
        let text = std::fs::read_to_string(&path).unwrap();
        let played = Scenario::default().play(&text);
        if played == text {
            continue;
        }
        if std::env::var("STARLING_GOLDEN").is_ok_and(|value| value == "rewrite") {
            std::fs::write(&path, played).unwrap();
        } else {
            failed.push(format!("{} should read:\n{played}", path.display()));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[derive(Default)]
struct Scenario {
    session: Option<AdsSession>,
    flavour: Option<Flavour>,
    target: Option<Arc<ResourceSet>>,
    /// Content by version, to print it.
    contents: BTreeMap<Version, String>,
    last: BTreeMap<ResourceType, Response>,
    /// The version that the client took last, by kind.
    taken: BTreeMap<ResourceType, String>,
    output: String,
}

impl Scenario {
    fn play(mut self, text: &str) -> String {
        for line in text.lines() {
            if line.starts_with(['<', '!']) {
                continue;
            }
            writeln!(self.output, "{line}").unwrap();
            let line = line.split('#').next().unwrap_or_default().trim();
            if !line.is_empty() {
                self.line(line);
                self.drain();
            }
        }
        self.output
    }

    fn line(&mut self, line: &str) {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "delta" => self.begin(Flavour::Delta),
            "sotw" => self.begin(Flavour::Sotw),
            "resources" => self.resources(rest),
            ">" => self.request(rest),
            _ => panic!("unknown line {line:?}"),
        }
    }

    fn begin(&mut self, flavour: Flavour) {
        self.flavour = Some(flavour);
        self.session = self.target.clone().map(|target| AdsSession::new(flavour, target));
        self.last.clear();
    }

    fn resources(&mut self, text: &str) {
        let mut words = text.split(' ');
        let revision = Revision(words.next().unwrap().parse().unwrap());
        let resources: Vec<_> = words.map(|word| Arc::new(self.resource(word))).collect();
        let set = Arc::new(ResourceSet::new(revision, resources));
        self.target = Some(Arc::clone(&set));
        match (&mut self.session, self.flavour) {
            (Some(session), _) => session.handle_resources(set),
            (None, Some(flavour)) => self.session = Some(AdsSession::new(flavour, set)),
            (None, None) => {}
        }
    }

    /// `KIND:NAME@CONTENT[->CLUSTER][>KIND:NAME]`
    fn resource(&mut self, word: &str) -> Resource {
        let (word, cluster) = match word.split_once("->") {
            Some((word, cluster)) => (word, Some(cluster)),
            None => (word, None),
        };
        let (word, child) = match word.split_once('>') {
            Some((word, child)) => (word, Some(child)),
            None => (word, None),
        };
        let (kind, named) = word.split_once(':').unwrap();
        let (name, content) = named.split_once('@').unwrap();
        let resource = Resource::new(kind_of(kind), name, content.as_bytes());
        self.contents.insert(resource.version, content.to_owned());
        let child = child.map(|child| child.split_once(':').unwrap());
        resource
            .with_children(child.map(|(kind, name)| (kind_of(kind), name.into())))
            .with_clusters(cluster.map(Into::into))
    }

    fn request(&mut self, text: &str) {
        let (kind, rest) = text.split_once(' ').unwrap_or((text, ""));
        let type_url = if kind == "unknown" { "type.googleapis.com/x.Y" } else { kind_of(kind).type_url() };
        let known = ResourceType::from_type_url(type_url);
        match self.flavour.unwrap() {
            Flavour::Delta => {
                let request = self.delta_request(known, rest);
                let request = DeltaDiscoveryRequest { type_url: type_url.to_owned(), ..request };
                self.session.as_mut().unwrap().handle_delta_request(request).unwrap();
            }
            Flavour::Sotw => {
                let request = self.sotw_request(known, rest);
                let request = DiscoveryRequest { type_url: type_url.to_owned(), ..request };
                self.session.as_mut().unwrap().handle_sotw_request(request).unwrap();
            }
        }
    }

    fn answered(&mut self, kind: Option<ResourceType>, rest: &str) -> (String, Option<Status>) {
        let last = kind.and_then(|kind| self.last.get(&kind));
        let nonce = last.map(|last| last.nonce.clone()).unwrap_or_default();
        let (word, text) = rest.split_once(' ').unwrap_or((rest, ""));
        match word {
            "ack" => {
                if let (Some(kind), Some(last)) = (kind, last) {
                    self.taken.insert(kind, last.version.clone());
                }
                (nonce, None)
            }
            "nack" => (nonce, Some(Status { message: text.to_owned(), ..Default::default() })),
            "stale" => ("stale".to_owned(), None),
            _ => (String::new(), None),
        }
    }

    fn delta_request(&mut self, kind: Option<ResourceType>, rest: &str) -> DeltaDiscoveryRequest {
        let (response_nonce, error_detail) = self.answered(kind, rest);
        let mut request = DeltaDiscoveryRequest { response_nonce, error_detail, ..Default::default() };
        if request.error_detail.is_some() {
            return request;
        }
        for word in rest.split(' ') {
            if let Some(name) = word.strip_prefix('+') {
                request.resource_names_subscribe.push(name.to_owned());
            } else if let Some(name) = word.strip_prefix('-') {
                request.resource_names_unsubscribe.push(name.to_owned());
            } else if let Some((name, content)) = word.split_once('@') {
                let version = Version::of(content.as_bytes()).to_string();
                request.initial_resource_versions.insert(name.to_owned(), version);
            }
        }
        request
    }

    fn sotw_request(&mut self, kind: Option<ResourceType>, rest: &str) -> DiscoveryRequest {
        let (answer, names) = rest.split_once('=').unwrap_or((rest, ""));
        let (response_nonce, error_detail) = self.answered(kind, answer.trim());
        let version_info = kind.and_then(|kind| self.taken.get(&kind)).cloned().unwrap_or_default();
        let resource_names = names.split_whitespace().map(str::to_owned).collect();
        DiscoveryRequest { version_info, response_nonce, error_detail, resource_names, ..Default::default() }
    }

    fn drain(&mut self) {
        let Some(session) = &mut self.session else { return };
        while let Some(response) = session.poll_response() {
            write!(self.output, "< {}", response.kind.abbreviation()).unwrap();
            for resource in &response.resources {
                write!(self.output, " +{}@{}", resource.name, self.contents[&resource.version]).unwrap();
            }
            for name in &response.removed {
                write!(self.output, " -{name}").unwrap();
            }
            self.output.push('\n');
            self.last.insert(response.kind, response);
        }
        while let Some(report) = session.poll_report() {
            match report {
                Report::Applied { revision, refusals_stand } => {
                    let standing = if refusals_stand { ", refusals stand" } else { "" };
                    writeln!(self.output, "! applied {revision}{standing}").unwrap();
                }
                Report::Rejected { revision, since, type_url, resources, text, .. } => {
                    let kind = ResourceType::from_type_url(type_url).unwrap().abbreviation();
                    let names = resources.join(" ");
                    writeln!(self.output, "! rejected {revision} since {since} {kind} {names}: {text}").unwrap();
                }
            }
        }
    }
}

fn kind_of(abbreviation: &str) -> ResourceType {
    ResourceType::ALL.into_iter().find(|kind| kind.abbreviation() == abbreviation).expect(abbreviation)
}
