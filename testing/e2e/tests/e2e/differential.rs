//! Both data planes do the same: the same plan and the same random requests go through Envoys and through the native proxy,
//! and whether, where and how each arrives, and what comes back, is compared.
//!
//! What may differ is listed by name below, with the reason; anything else is a bug of one of the two. A failure prints the
//! seed; `STARLING_DIFFERENTIAL_SEED` repeats a run, `STARLING_DIFFERENTIAL_REQUESTS` makes a longer one.

mod app;
mod deliberate;
mod grammar;
mod planes;
mod wire;

use std::collections::BTreeMap;
use std::net::{IpAddr, UdpSocket};

use starling_e2e::Plane;

use self::app::Seen;
use self::deliberate::{FIELDS_OF_REQUESTS, FIELDS_OF_RESPONSES};
use self::grammar::{Case, Grammar};
use self::planes::DataPlane;
use self::wire::Client;

/// The seed where none is given.
const SEED: u64 = 0x5747_4152_4c49_4e47;

/// Requests under each default policy.
const REQUESTS: u64 = 5_000;

/// Differences that a failure prints.
const PRINTED_MAX: usize = 10;

/// Lanes of requests at once; each has its own connections.
const LANES: usize = 4;

/// Every status that the plan and the applications have, and that of what is no request.
const STATUSES: [u16; 14] = [200, 204, 301, 302, 303, 304, 307, 308, 400, 403, 404, 418, 429, 503];

/// Every status of gRPC that the application has, and that of who may not call it.
const RPC_STATUSES: [&str; 5] = ["0", "3", "5", "7", "14"];

/// What became of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Fate {
    status: Option<u16>,
    location: Option<String>,
    /// Of a call of gRPC.
    rpc_status: Option<String>,
    /// Other fields of the response that are compared.
    fields: Vec<(String, String)>,
    body: String,
    /// What applications saw of it; more than one if it was taken for several.
    seen: Vec<Seen>,
}

/// One data plane with a client's connections.
struct Lane<'a> {
    plane: &'a DataPlane,
    clients: BTreeMap<(&'static str, &'static str), Client>,
}

impl<'a> Lane<'a> {
    fn new(plane: &'a DataPlane) -> Self {
        Self { plane, clients: BTreeMap::new() }
    }

    async fn fate(&mut self, case: &Case) -> Fate {
        let to = (case.caller, case.called);
        let client = self.clients.entry(to).or_insert_with(|| Client::new(self.plane.authority(to.0, to.1)));
        let response = match case.http2() {
            Some(request) => client.send2(request).await,
            None => client.send(&case.bytes(), case.method.trim() == "HEAD").await,
        };
        let value = |wanted| response.fields.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.clone());
        let (location, rpc_status) = (value("location"), value("grpc-status"));
        let compared = |name: &str| name != "location" && !FIELDS_OF_RESPONSES.iter().any(|(field, _)| *field == name);
        let seen = self.plane.notes.take(&case.number).into_iter().map(|seen| self.comparable(seen));
        let seen: Vec<_> = seen.collect();
        // What a proxy says in its own name is worded by each.
        let body = if seen.is_empty() { String::new() } else { response.body };
        let fields = response.fields.into_iter().filter(|(name, _)| compared(name) && !seen.is_empty()).collect();
        Fate { status: response.status, location, rpc_status, fields, body, seen }
    }

    /// What was seen, but for what may differ and what means the same.
    fn comparable(&self, mut seen: Seen) -> Seen {
        seen.fields.retain(|(name, _)| !FIELDS_OF_REQUESTS.iter().any(|(field, _)| name == field));
        for (_, value) in &mut seen.fields {
            *value = without_hash(&value.replace(&self.plane.trust_domain, "TRUST-DOMAIN"));
        }
        // Where the caller is on the machine itself, Envoy writes the machine's own address and not the caller's.
        for (_, value) in seen.fields.iter_mut().filter(|(name, _)| name == "x-forwarded-for") {
            *value = with_own_addresses_alike(value);
        }
        // Several fields of a name are one list, in which an empty element is none (RFC 9110 sections 5.3 and 5.6.1, RFC 9113
        // section 8.2.3); Envoy joins those that it knows.
        let mut lists: Vec<(String, Vec<String>)> = Vec::new();
        for (name, value) in seen.fields {
            let cookies = if name == "cookie" { value.split(';').collect() } else { vec![&*value] };
            let values = cookies.into_iter().map(str::trim).filter(|value| !value.is_empty()).map(str::to_owned);
            match lists.last_mut() {
                Some((last, list)) if *last == name => list.extend(values),
                Some(_) | None => lists.push((name, values.collect())),
            }
        }
        lists.retain(|(name, list)| name != "cookie" || !list.is_empty());
        Seen { fields: lists.into_iter().map(|(name, list)| (name, list.join(","))).collect(), ..seen }
    }
}

/// What `x-forwarded-client-cert` says but for the certificate's hash: each mesh issues its own.
fn without_hash(value: &str) -> String {
    value.split(';').filter(|part| !part.starts_with("Hash=")).collect::<Vec<_>>().join(";")
}

/// A list of addresses in which those of this machine are loopback.
fn with_own_addresses_alike(value: &str) -> String {
    let is_own = |part: &str| part.parse::<IpAddr>().is_ok_and(|address| UdpSocket::bind((address, 0)).is_ok());
    let parts = value.split(',').map(str::trim).map(|part| if is_own(part) { "127.0.0.1" } else { part });
    parts.collect::<Vec<_>>().join(",")
}

/// A pair of lanes.
struct Pair<'a> {
    envoy: Lane<'a>,
    native: Lane<'a>,
}

/// What a run has shown, so that one that shows nothing is none.
#[derive(Debug, Default)]
struct Tally {
    /// How often each difference was met that is meant.
    meant: BTreeMap<&'static str, usize>,
    /// How many requests each route of shop took.
    routes: BTreeMap<String, usize>,
    /// How often each status was answered.
    statuses: BTreeMap<u16, usize>,
    /// How often each status of gRPC was.
    rpc_statuses: BTreeMap<String, usize>,
    /// How many requests were tried so often.
    tries: BTreeMap<usize, usize>,
    /// How often an application saw a request.
    seen: usize,
}

impl Tally {
    fn count(&mut self, fate: &Fate) {
        *self.statuses.entry(fate.status.unwrap_or(0)).or_default() += 1;
        self.seen += fate.seen.len();
        *self.tries.entry(fate.seen.len()).or_default() += 1;
        if let Some(status) = &fate.rpc_status {
            *self.rpc_statuses.entry(status.clone()).or_default() += 1;
        }
        for route in fate.seen.iter().filter_map(|seen| seen.value("x-route")) {
            *self.routes.entry(route.to_owned()).or_default() += 1;
        }
    }

    fn add(&mut self, other: Self) {
        other.meant.into_iter().for_each(|(what, count)| *self.meant.entry(what).or_default() += count);
        other.routes.into_iter().for_each(|(route, count)| *self.routes.entry(route).or_default() += count);
        other.statuses.into_iter().for_each(|(status, count)| *self.statuses.entry(status).or_default() += count);
        other
            .rpc_statuses
            .into_iter()
            .for_each(|(status, count)| *self.rpc_statuses.entry(status).or_default() += count);
        other.tries.into_iter().for_each(|(tries, count)| *self.tries.entry(tries).or_default() += count);
        self.seen += other.seen;
    }

    /// Whether the requests have met what there is to be met.
    fn check(&self, seed: u64, requests: u64) {
        eprintln!("meant differences: {:?}", self.meant);
        if (seed, requests) != (SEED, REQUESTS) {
            return;
        }
        let requests = usize::try_from(requests).expect("a number of requests");
        assert!(self.meant.values().sum::<usize>() * 20 < requests, "one in twenty is too many: {:?}", self.meant);
        assert!(self.seen * 5 > requests, "one in five arrives: {}", self.seen);
        let unmet: Vec<_> = STATUSES.iter().filter(|status| !self.statuses.contains_key(status)).collect();
        assert!(unmet.is_empty(), "{unmet:?} not among {:?}", self.statuses);
        let unmet: Vec<_> = RPC_STATUSES.iter().filter(|status| !self.rpc_statuses.contains_key(**status)).collect();
        assert!(unmet.is_empty(), "{unmet:?} not among {:?}", self.rpc_statuses);
        assert!((0..=3).all(|tries| self.tries.contains_key(&tries)), "tries: {:?}", self.tries);
        let taken = |route: usize| self.routes.contains_key(&route.to_string()) || route == planes::FAULT;
        let untaken: Vec<_> = (0..planes::ROUTES).filter(|route| !taken(*route)).collect();
        assert!(untaken.is_empty(), "routes {untaken:?} were never taken: {:?}", self.routes);
    }
}

struct Difference {
    case: Case,
    envoy: Fate,
    native: Fate,
}

impl Pair<'_> {
    /// Sends one request to both; how they differ where they should not.
    async fn compare(&mut self, case: &Case, tally: &mut Tally) -> Option<Difference> {
        let (envoy, native) = tokio::join!(self.envoy.fate(case), self.native.fate(case));
        tally.count(&native);
        if envoy == native {
            return None;
        }
        if let Some(meant) = deliberate::covers(case, &envoy, &native) {
            *tally.meant.entry(meant.what).or_default() += 1;
            return None;
        }
        Some(Difference { case: case.clone(), envoy, native })
    }

    /// Takes away from a request whatever is not needed for a difference.
    async fn minimised(&mut self, mut found: Difference) -> Difference {
        'smaller: loop {
            for simpler in found.case.simpler() {
                if let Some(still) = self.compare(&simpler, &mut Tally::default()).await {
                    found = still;
                    continue 'smaller;
                }
            }
            return found;
        }
    }
}

fn setting(name: &str, default: u64) -> u64 {
    let value = std::env::var(name).ok().filter(|value| !value.is_empty());
    value.map_or(default, |value| value.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

async fn both_do_the_same(default_policy: &'static str) {
    let (envoy, native) =
        tokio::join!(DataPlane::start(Plane::Envoy, default_policy), DataPlane::start(Plane::Native, default_policy),);
    let seed = setting("STARLING_DIFFERENTIAL_SEED", SEED);
    let requests = setting("STARLING_DIFFERENTIAL_REQUESTS", REQUESTS);
    let mut grammar = Grammar::new(seed);
    let cases: Vec<_> = (0..requests).map(|_| grammar.case()).collect();
    let lane = async |number: usize| {
        let mut pair = Pair { envoy: Lane::new(&envoy), native: Lane::new(&native) };
        let (mut found, mut tally) = (Vec::new(), Tally::default());
        for case in cases.iter().skip(number).step_by(LANES) {
            found.extend(pair.compare(case, &mut tally).await);
        }
        (found, tally)
    };
    let lanes = tokio::join!(lane(0), lane(1), lane(2), lane(3));
    let (mut found, mut tally) = (Vec::new(), Tally::default());
    for (differences, of_lane) in [lanes.0, lanes.1, lanes.2, lanes.3] {
        found.extend(differences);
        tally.add(of_lane);
    }
    let count = found.len();
    let mut pair = Pair { envoy: Lane::new(&envoy), native: Lane::new(&native) };
    for difference in found.into_iter().take(PRINTED_MAX) {
        eprintln!("==== {}", difference.case.bytes().escape_ascii());
        print(&pair.minimised(difference).await);
    }
    assert_eq!(count, 0, "of {requests} requests made from the seed {seed}, default {default_policy}, differ");
    tally.check(seed, requests);
}

fn print(difference: &Difference) {
    let Difference { case, envoy, native } = difference;
    let bytes = case.bytes();
    let version = if case.http2().is_some() { " over HTTP/2" } else { "" };
    eprintln!("---- {} calls {}{version}: {}", case.caller, case.called, bytes.escape_ascii());
    let answer = |fate: &Fate| format!("{:?} {:?} {:?}", fate.status, fate.location, fate.rpc_status);
    if answer(envoy) != answer(native) {
        eprintln!("answer: Envoy {}; native {}", answer(envoy), answer(native));
    }
    if (&envoy.fields, &envoy.body) != (&native.fields, &native.body) {
        eprintln!("  Envoy:  {:?} {:?}\n  native: {:?} {:?}", envoy.fields, envoy.body, native.fields, native.body);
    }
    if envoy.seen != native.seen {
        eprintln!("seen by Envoy's:  {:?}\nseen by native's: {:?}", envoy.seen, native.seen);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_data_planes_do_the_same_where_calls_are_allowed() {
    both_do_the_same("allow").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_data_planes_do_the_same_where_calls_are_denied() {
    both_do_the_same("deny").await;
}
