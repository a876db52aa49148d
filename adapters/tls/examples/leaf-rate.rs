//! Certificates of workloads and of agents signed per second on one core, beside the bar.
//!
//! Counts the server's whole work for one certificate: parse the request, verify its signature, draw a serial number, encode,
//! sign, write PEM. Keys and requests are made beforehand, as nodes do.

use std::error::Error;
use std::time::{Duration, Instant, SystemTime};

use starling_identity::{ClusterId, IssuanceRules, Layout, SpiffeId};
use starling_model::{Datacenter, Namespace, NodeName, ServiceName, UnixSeconds};
use starling_tls::{CertificateAuthority, IssueError, IssuedLeaf, LeafKey};

/// Certificates per second and core that the server must reach.
const BAR_CERTIFICATES_PER_SECOND: f64 = 5_000.0;

/// Different keys in use, so that nothing is measured that a cache would hold.
const KEYS: usize = 2_000;

/// How long each round runs.
const ROUND: Duration = Duration::from_secs(2);

/// Rounds; the median counts.
const ROUNDS: usize = 5;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let now = UnixSeconds(SystemTime::UNIX_EPOCH.elapsed()?.as_secs());
    let trust_domain = ClusterId::from_random(0).trust_domain();
    let authority = CertificateAuthority::create(folder.path(), &trust_domain, now)?;
    let id = SpiffeId::new(
        Layout::Consul,
        trust_domain,
        Namespace::new("default")?,
        Datacenter::new("dc1")?,
        ServiceName::new("web")?,
    );

    let started = Instant::now();
    let requests = (0..KEYS).map(|_| LeafKey::generate()?.csr_der()).collect::<Result<Vec<_>, _>>()?;
    let requests_per_second = rate(KEYS, started.elapsed());

    let rules = IssuanceRules::default();
    report("leaf", &requests, |request| authority.issue_leaf(request, &id, &rules, now, None))?;
    let (datacenter, node) = (Datacenter::new("dc1")?, NodeName::new("n1")?);
    report("agent", &requests, |request| authority.issue_agent(request, &datacenter, &node, &rules, now))?;
    println!("keys with requests/s (node)     {requests_per_second:>9.0}");
    Ok(())
}

/// Measures one way to issue, and prints the median.
fn report(
    what: &str,
    requests: &[Vec<u8>],
    issue: impl Fn(&[u8]) -> Result<IssuedLeaf, IssueError>,
) -> Result<(), IssueError> {
    let mut rounds = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let started = Instant::now();
        let mut issued = 0;
        for request in requests.iter().cycle() {
            issue(request)?;
            issued += 1;
            if started.elapsed() >= ROUND {
                break;
            }
        }
        rounds.push(rate(issued, started.elapsed()));
    }
    rounds.sort_by(f64::total_cmp);
    let median = rounds[ROUNDS / 2];
    let verdict = if median >= BAR_CERTIFICATES_PER_SECOND { "reached" } else { "MISSED" };
    println!("{what:5} certificates/s, one core  {median:>9.0}   bar {BAR_CERTIFICATES_PER_SECOND:.0}   {verdict}");
    println!("  slowest and fastest round     {:>9.0}   {:.0}", rounds[0], rounds[ROUNDS - 1]);
    Ok(())
}

fn rate(count: usize, elapsed: Duration) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "counts here stay far below 2^52")]
    let count = count as f64;
    count / elapsed.as_secs_f64()
}
