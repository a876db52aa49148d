//! A minute of faults, of the kinds of which `make chaos` has hundreds.

use starling_chaos::judgement::judge;
use starling_chaos::{programs, report, run};

/// Enough that every kind is among them.
const FAULTS: usize = 10;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_faults_lose_nothing_and_take_nothing_back() {
    let programs = programs().expect("the programs under test");
    let options = run::Options { faults: FAULTS, seed: 1, programs, duration: None };
    let mut remains = run::run(&options).await.expect("a cluster that comes back");
    let figures = judge(&mut remains);
    let table = report::table(&remains, &figures);
    assert_eq!(remains.faults.len(), FAULTS, "{table}");
    assert!(figures.acknowledged > 100, "there was load: {table}");
    let is_sound = remains.findings.first.is_empty() && figures.undecided == 0;
    assert!(is_sound, "{table}\nlogs and data: {}", remains.folder.keep().display());
}
