//! A run in one table, with what it broke.

use std::fmt::Write as _;

use comfy_table::{ContentArrangement, Table, presets};

use crate::faults::Harm;
use crate::history::{Mode, Promise};
use crate::judgement::Figures;
use crate::run::Remains;

/// Programs that ended by themselves of which it is told why.
const TOLD_ENDS: usize = 3;

/// The table, and under it what was broken.
#[must_use]
pub fn table(remains: &Remains, figures: &Figures) -> String {
    let broken = |promise: Promise| remains.findings.of(promise);
    let of = |harm: fn(&Harm) -> bool| remains.faults.iter().filter(|struck| harm(&struck.fault.harm)).count();
    let reads = |mode: Mode| figures.reads.get(&mode).copied().unwrap_or_default();
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(["what", "found", "bar", ""]);
    let kills = of(|harm| *harm == Harm::Kill);
    let stops = of(|harm| *harm == Harm::Stop);
    let cuts = remains.faults.len() - kills - stops;
    let led = remains.faults.iter().filter(|struck| struck.was_leader).count();
    let faults = format!("{} ({kills} kills, {stops} stops, {cuts} cuts)", remains.faults.len());
    table.add_row(["faults", &faults, "", &format!("{led} of etcd's leader")]);
    let unknown = format!("{} of unknown outcome", figures.unknown);
    table.add_row(["acknowledged writes", &figures.acknowledged.to_string(), "", &unknown]);
    let mut judged = |what: &str, found: usize, note: String| {
        let verdict = if found == 0 { "0" } else { "MISSED: 0" };
        table.add_row([what, &found.to_string(), verdict, &note]);
    };
    let ledger = format!("{} registrations looked up at every server", remains.ledger.len());
    judged("acknowledged writes lost", broken(Promise::NothingLost), ledger);
    let histories =
        format!("{} operations on {} keys, {} undecided", figures.operations, figures.keys, figures.undecided);
    judged("histories not linearizable", broken(Promise::Linearizable) + figures.undecided, histories);
    let [default, stale, moving] = [Mode::Default, Mode::Stale, Mode::Blocking].map(reads);
    let sessions = format!("{default} default, {stale} stale, {moving} from server to server");
    judged("reads going back on a session", broken(Promise::NoGoingBack), sessions);
    judged("two contents of one index", broken(Promise::OneContent), String::new());
    judged(
        "servers that differ in the end",
        broken(Promise::Agreement),
        format!("healed in {:.1?}; {} times one read everything anew", remains.healed_in, remains.read_anew),
    );
    judged("reads refused by a server that runs", broken(Promise::ReadsGoOn), String::new());
    judged("panics", broken(Promise::NoPanic), format!("{} ended by themselves", remains.ended_by_themselves.len()));
    let alone = || figures.leader_deaths.iter().filter(|(_, is_alone)| *is_alone).map(|(back, _)| *back);
    let (longest, deaths) = (alone().max().unwrap_or_default(), alone().count());
    let verdict = if broken(Promise::WritesAreBack) == 0 { "≤ 5 s" } else { "MISSED: ≤ 5 s" };
    let with_others = figures.leader_deaths.len() - deaths;
    let note = format!("longest of {deaths}; {with_others} more beside other faults");
    table.add_row(["leader killed, writes back after", &format!("{longest:.2?}"), verdict, &note]);
    let mut text = table.trim_fmt();
    for finding in &remains.findings.first {
        let _ = write!(text, "\n\n{:?}: {}", finding.promise, finding.text);
    }
    for (role, why) in remains.ended_by_themselves.iter().take(TOLD_ENDS) {
        let _ = write!(text, "\n\n{role} ended by itself: {why}");
    }
    text
}
