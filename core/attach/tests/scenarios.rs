//! Plays `tests/scenarios/*.txt` and compares what is printed.
//!
//! A file is a list of blocks: commands, `----`, and what they printed, up to an empty line. Lines that begin with `#`
//! before the commands are the story. `STARLING_GOLDEN=rewrite cargo test -p starling-attach --test scenarios` writes what
//! is printed now; the difference is for review.
//!
//! | Command | Meaning |
//! |---|---|
//! | `commit CHANGE; CHANGE` | one commit: `node N IP`, `sidecar N/ID SERVICE PORT`, `drop N/ID`, `check N/ID STATUS`, `allow\|deny SERVICE`, `tag N/ID SERVICE PORT TAG` |
//! | `agent A N` | an agent on node N, with nothing |
//! | `A connects`, `A loses` | its connection begins, ends |
//! | `A wants S…`, `A forgets S…`, `A asks S@REV…` | subscriptions; `asks` says what it likes |
//! | `A takes` | everything under way arrives |
//! | `A sends`, `A reads N` | the server puts what there is on the wire; the agent reads N frames of it |
//! | `A begins anew`, `A restarts` | it forgets all; it comes back with what is on its disk |
//! | `A holds` | what it knows |
//! | `wait S`, `restart`, `set back REV` | time; the server comes back with its store; or with an older one |
//! | `encoded` | frames encoded since last asked |

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../catalog/tests/support/records.rs"]
mod records;
#[path = "story/world.rs"]
mod world;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use starling_attach::StreamId;
use starling_attach::message::{ServerSays, Update, Whole, WireItem, decode_subject};
use starling_attach::projection::{Item, decode_item};
use starling_catalog::{Snapshot, Subject};
use starling_model::{Action, Change, ConfigEntry, Record, RecordKey, Revision, SourceDecision};

use world::{Agent, Asks, World, subject};

#[test]
fn every_story_ends_as_told() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios");
    let mut files: Vec<PathBuf> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "txt"));
    files.sort();
    assert!(files.len() >= 12, "only {} stories in {}", files.len(), folder.display());
    let rewrite = std::env::var("STARLING_GOLDEN").is_ok_and(|value| value == "rewrite");
    let mut failed = Vec::new();
    for file in files {
        let told = fs::read_to_string(&file).unwrap();
        let played = play(&told);
        if rewrite {
            fs::write(&file, &played).unwrap();
        } else if told != played {
            failed.push(format!("{}\n{}", file.display(), first_difference(&told, &played)));
        }
    }
    assert!(failed.is_empty(), "{}\nSTARLING_GOLDEN=rewrite accepts what is printed now", failed.join("\n"));
}

/// The file as it should read: its commands, and what they print now.
fn play(told: &str) -> String {
    let mut story = Story { world: World::new(), history: vec![Snapshot::default()], encoded: 0 };
    let mut out = String::new();
    for block in told.split("\n\n").map(str::trim).filter(|block| !block.is_empty()) {
        let commands: Vec<&str> = block.lines().take_while(|line| *line != "----").collect();
        let mut printed = String::new();
        for command in commands.iter().filter(|line| !line.starts_with('#')) {
            printed.push_str(&story.run(command));
        }
        out.push_str(&format!("{}\n----\n{printed}\n", commands.join("\n")));
    }
    out.truncate(out.trim_end().len());
    out + "\n"
}

fn first_difference(told: &str, played: &str) -> String {
    let mut lines = told.lines().zip(played.lines()).enumerate();
    match lines.find(|(_, (a, b))| a != b) {
        Some((number, (a, b))) => format!("  line {}\n  told:   {a}\n  played: {b}", number + 1),
        None => format!("  {} lines told, {} played", told.lines().count(), played.lines().count()),
    }
}

struct Story {
    world: World,
    /// The state at each revision.
    history: Vec<Snapshot>,
    encoded: u64,
}

impl Story {
    fn run(&mut self, command: &str) -> String {
        let words: Vec<&str> = command.split_whitespace().collect();
        match words.as_slice() {
            ["commit", ..] => return self.commit(command.trim_start_matches("commit ")),
            ["agent", name, node] => {
                self.world.agents.insert((*name).to_owned(), Agent::new(node));
            }
            ["wait", seconds] => self.world.now_ms += seconds.parse::<u64>().unwrap() * 1000,
            ["restart"] => {
                self.world.restart();
                self.encoded = 0;
            }
            ["set", "back", revision] => {
                let old = self.history[revision.parse::<usize>().unwrap()].clone();
                self.history.truncate(usize::try_from(old.revision().0).unwrap() + 1);
                self.world.set_back(old);
                self.encoded = 0;
            }
            ["encoded"] => {
                let all = self.world.fleet.encoded();
                return format!("{}\n", all - std::mem::replace(&mut self.encoded, all));
            }
            [name, verb, args @ ..] => return self.agent(name, verb, args),
            _ => panic!("no command {command:?}"),
        }
        String::new()
    }

    fn commit(&mut self, changes: &str) -> String {
        let changes: Vec<_> = changes.split("; ").map(|change| change_of(&self.world.snapshot, change)).collect();
        let published = self.world.commit(&changes);
        self.history.push(self.world.snapshot.clone());
        let named = |ids: &[StreamId]| {
            let names = self.world.agents.iter().filter(|(_, agent)| agent.stream.is_some_and(|id| ids.contains(&id)));
            names.map(|(name, _)| format!(" {name}")).collect::<String>()
        };
        let (concerned, woken) = (named(&published.concerned), named(&published.woken));
        let told = |names: String| if names.is_empty() { " nobody".to_owned() } else { names };
        format!("{}: concerns{}, wakes{}\n", self.world.snapshot.revision(), told(concerned), told(woken))
    }

    fn agent(&mut self, name: &str, verb: &str, args: &[&str]) -> String {
        match verb {
            "connects" => {
                self.world.connect(name);
                let Some(Asks::Subscribe(resumes, _)) = self.world.agent(name).up.back() else { panic!("it resumes") };
                return resumes.iter().map(|(subject, have)| format!("> {subject} from {have}\n")).collect();
            }
            "loses" => self.world.drop_connection(name),
            "wants" => args.iter().for_each(|text| self.world.agent(name).wants(&subject(text))),
            "forgets" => args.iter().for_each(|text| self.world.agent(name).forgets(&subject(text))),
            "asks" => {
                let asked = args.iter().map(|text| text.split_once('@').unwrap());
                let resumes: Vec<_> = asked.map(|(s, rev)| (subject(s), Revision(rev.parse().unwrap()))).collect();
                let reached = self.world.agent(name).replica.reached();
                self.world.agent(name).up.push_back(Asks::Subscribe(resumes, reached));
            }
            "begins" => self.world.agent(name).replica.begin_anew(),
            "restarts" => {
                self.world.drop_connection(name);
                self.world.agent(name).restart();
            }
            "holds" => return self.holds(name),
            "takes" => return self.hear(name, usize::MAX),
            "sends" => return self.listen(name),
            "reads" => return self.read(name, args[0].parse().unwrap()),
            other => panic!("no agent {other:?}"),
        }
        String::new()
    }

    fn hear(&mut self, name: &str, frames: usize) -> String {
        self.listen(name) + &self.read(name, frames)
    }

    fn listen(&mut self, name: &str) -> String {
        loop {
            match self.world.server_reads(name) {
                Err(error) => {
                    self.world.drop_connection(name);
                    return format!("refused: {error}\n");
                }
                Ok(Some(_)) => {}
                Ok(None) => break,
            }
        }
        while self.world.server_sends(name) > 0 {}
        String::new()
    }

    fn read(&mut self, name: &str, frames: usize) -> String {
        let mut out = String::new();
        for _ in 0..frames {
            match self.world.agent(name).reads() {
                Err(error) => {
                    self.world.drop_connection(name);
                    return out + &format!("error: {error}\n");
                }
                Ok(None) => break,
                Ok(Some((says, touched))) => out += &heard(&says, touched),
            }
        }
        out
    }

    fn holds(&mut self, name: &str) -> String {
        let agent = self.world.agent(name);
        let mut out = format!("through {}\n", agent.replica.through());
        let holds = agent.holds();
        for subject in agent.replica.subjects() {
            match holds.get(subject) {
                None => writeln!(out, "{subject} unknown").unwrap(),
                Some(items) => {
                    writeln!(out, "{subject}").unwrap();
                    for (key, value) in items {
                        let wire = WireItem { key: key.clone(), value: Some(value.clone()) };
                        writeln!(out, "  {}", item_text(subject, &wire)).unwrap();
                    }
                }
            }
        }
        out
    }
}

fn heard(says: &ServerSays, touched: Option<BTreeSet<Subject>>) -> String {
    match says {
        ServerSays::Update(Update { subject, revision, item }) => {
            let subject = decode_subject(subject.as_ref().unwrap()).unwrap();
            format!("< {subject} @{revision} {}\n", item_text(&subject, item.as_ref().unwrap()))
        }
        ServerSays::Whole(Whole { subject, revision, items }) => {
            let subject = decode_subject(subject.as_ref().unwrap()).unwrap();
            let mut out = format!("< {subject} @{revision} whole\n");
            for item in items {
                writeln!(out, "    {}", item_text(&subject, item)).unwrap();
            }
            out
        }
        ServerSays::Through(through) => {
            let touched: String = touched.unwrap().iter().map(|subject| format!(" {subject}")).collect();
            let touched = if touched.is_empty() { " nothing".to_owned() } else { touched };
            format!("< through {}: changed{touched}\n", through.revision)
        }
        ServerSays::Unsubscribed(unsubscribed) => format!("< unsubscribed {}\n", unsubscribed.count),
        ServerSays::Welcome(_)
        | ServerSays::MoveTo(_)
        | ServerSays::Leaving(_)
        | ServerSays::Remind(_)
        | ServerSays::Superseded(_)
        | ServerSays::Reach(_) => {
            panic!("a fleet does not say so")
        }
    }
}

fn item_text(subject: &Subject, wire: &WireItem) -> String {
    let (_, item) = decode_item(subject, wire).unwrap();
    match item {
        None => format!("{} gone", wire.key).trim_start().to_owned(),
        Some(Item::Mark) => "mark".to_owned(),
        Some(Item::Front(front)) => {
            let address = front.address.as_deref().unwrap_or("nowhere");
            let port = front.port.map_or("?".to_owned(), |port| port.to_string());
            let marks: String = front.marks.iter().flat_map(|marks| &marks.tags).map(|tag| format!(" {tag}")).collect();
            format!("{} {address}:{port} {:?}{marks}", front.key, front.health).to_lowercase()
        }
        Some(Item::Root(root)) => root.id,
        Some(Item::Server(server)) => server.name.to_string(),
        Some(Item::VirtualAddress(address)) => address.to_string(),
        Some(Item::Services(services)) => format!("{services:?}"),
        Some(Item::Entry(ConfigEntry::ServiceIntentions(entry))) => match entry.sources[0].decision {
            SourceDecision::Connection(action) => action.as_str().to_owned(),
            SourceDecision::Requests(_) => "by request".to_owned(),
        },
        Some(Item::Entry(entry)) => entry.key().to_string(),
    }
}

fn change_of(snapshot: &Snapshot, text: &str) -> Change {
    let key = |text: &str| {
        let (node, id) = text.split_once('/').unwrap();
        records::key(node, id)
    };
    let words: Vec<&str> = text.split_whitespace().collect();
    let intention = |service: &str, action| {
        Change::Put(Record::Config(records::intentions(service, vec![records::connection("*", action)])))
    };
    let sidecar = |at: &str, service: &str, port: &str| {
        let (node, id) = at.split_once('/').unwrap();
        records::sidecar(node, id, &format!("{service}-sidecar-proxy"), service, port.parse().unwrap())
    };
    match words.as_slice() {
        ["node", name, address] => Change::Put(records::node(name, address)),
        ["sidecar", at, service, port] => Change::Put(Record::Instance(sidecar(at, service, port))),
        ["tag", at, service, port, tag] => {
            let mut instance = sidecar(at, service, port);
            instance.tags = vec![(*tag).to_owned()];
            Change::Put(Record::Instance(instance))
        }
        ["resolver", service] => Change::Put(Record::Config(records::resolver(service, true))),
        ["no-resolver", service] => Change::Delete(RecordKey::Config(records::resolver(service, true).key())),
        ["drop", at] => Change::Delete(RecordKey::Instance(key(at))),
        ["check", at, status] => {
            let instance = &snapshot.instance(&key(at)).unwrap().value;
            let owner = Some((instance.key.id.as_str(), instance.name.as_str()));
            Change::Put(records::check(instance.key.node.as_str(), "c", owner, status.parse().unwrap()))
        }
        ["allow", service] => intention(service, Action::Allow),
        ["deny", service] => intention(service, Action::Deny),
        _ => panic!("no change {text:?}"),
    }
}
