use clap::Parser;

use super::*;

#[derive(Debug, Parser)]
struct Program {
    #[command(flatten)]
    args: FaultArgs,
}

fn asked(arguments: &[&str]) -> anyhow::Result<Conditions> {
    Program::try_parse_from(std::iter::once(&"faults").chain(arguments))?.args.conditions()
}

fn conditions(arguments: &[&str]) -> (u32, f64, f64) {
    let Conditions { slow_readers, loss_percent, resets_percent } = asked(arguments).unwrap();
    (slow_readers, loss_percent, resets_percent)
}

#[test]
fn everything_is_hard_unless_something_is_named() {
    assert_eq!(conditions(&[]), (100, 1.0, 5.0));
    assert_eq!(conditions(&["--nodes", "50"]), (1, 1.0, 5.0));
    assert_eq!(conditions(&["--loss", "0"]), (100, 0.0, 5.0));
    assert_eq!(conditions(&["--slow-readers", "30"]), (30, 0.0, 0.0));
    assert_eq!(conditions(&["--loss", "0.5"]), (0, 0.5, 0.0));
    assert_eq!(conditions(&["--loss", "1", "--resets", "5"]), (0, 1.0, 5.0));
    assert_eq!(conditions(&["--slow-readers", "0"]), (0, 1.0, 5.0));
}

#[test]
fn what_cannot_be_is_refused() {
    for arguments in [
        &["--loss", "31"][..],
        &["--loss", "-1"],
        &["--resets", "101"],
        &["--resets", "NaN"],
        &["--slow-rate", "0"],
        &["--nodes", "10", "--slow-readers", "10"],
        &["--slow-readers", "0", "--loss", "0", "--resets", "0"],
    ] {
        assert!(asked(arguments).is_err(), "{arguments:?}");
    }
}

#[test]
fn slow_readers_are_spread_over_nodes_that_have_a_workload() {
    let slow = |arguments: &[&str]| {
        let args = Program::try_parse_from(std::iter::once(&"faults").chain(arguments)).unwrap().args;
        args.conditions().unwrap().slow_nodes(&args.fleet)
    };
    let all = slow(&[]);
    assert!(all.len() == 100 && all.iter().all(|node| node % 100 == 0), "{all:?}");
    assert_eq!(slow(&["--nodes", "9", "--workloads", "4", "--slow-readers", "3"]), BTreeSet::from([0, 1, 2]));
    assert!(slow(&["--resets", "5"]).is_empty());
}
