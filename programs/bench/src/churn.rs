//! The command line of `starling bench churn`, which is two scenarios: without `--proxy`, how a change reaches a simulated
//! fleet among many others; with it, what requests through proxies notice of changes.

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command, Error, FromArgMatches};

use crate::{cost, propagation};

const ABOUT: &str = "\
Measure a change of an upstream that all have among 200 others a second; with --proxy, requests while their mesh changes";

const LONG_ABOUT: &str = "\
Measure a change of an upstream that all workloads of a simulated fleet have, among 200 others a second.

With --proxy, measure requests through these proxies, while routes, endpoints and certificates of their mesh change at a
steady rate: errors, latencies, and the worst second, beside the same mesh at rest.";

/// What chooses between both.
const PROXY: &str = "proxy";

/// Where options of requests are shown.
const HEADING: &str = "With --proxy";

/// Options of requests that make no sense while a mesh changes.
const HIDDEN: [&str; 7] = ["target", "headers", "ca", "insecure", "cert", "key", "services"];

/// One of both.
#[derive(Debug)]
pub(crate) enum ChurnArgs {
    Fleet(Box<propagation::ScenarioArgs>),
    Requests(Box<cost::Args>),
}

fn of_fleet() -> Command {
    propagation::ScenarioArgs::augment_args(Command::new("fleet"))
}

fn of_requests() -> Command {
    cost::Args::augment_args(Command::new("requests"))
}

/// The options of one that the other does not have.
fn only(one: &Command, other: &Command) -> Vec<clap::Id> {
    let has = |id: &clap::Id| other.get_arguments().any(|argument| argument.get_id() == id);
    one.get_arguments().map(|argument| argument.get_id().clone()).filter(|id| !has(id)).collect()
}

impl Args for ChurnArgs {
    fn augment_args(command: Command) -> Command {
        let (fleet, requests) = (of_fleet(), of_requests());
        let further = only(&requests, &fleet);
        let further = requests.get_arguments().filter(|argument| further.contains(argument.get_id()));
        // What is hidden is there to be refused with a reason.
        let is_hidden = |id: &clap::Id| HIDDEN.iter().any(|hidden| id == hidden);
        let shown = |argument: &Arg| {
            let is_choice = argument.get_id() == PROXY;
            argument.clone().help_heading(HEADING).hide(is_hidden(argument.get_id())).hide_default_value(is_choice)
        };
        let further: Vec<_> = further.map(shown).collect();
        propagation::ScenarioArgs::augment_args(command).args(further).about(ABOUT).long_about(LONG_ABOUT)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for ChurnArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let is_given = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
        let (fleet, requests) = (of_fleet(), of_requests());
        let of_proxies = is_given(PROXY);
        let foreign = if of_proxies { only(&fleet, &requests) } else { only(&requests, &fleet) };
        let known = |id: &clap::Id| matches.try_contains_id(id.as_str()).unwrap_or(false);
        if is_given("target") {
            let text = "churn changes the mesh that it measures: a --target cannot be asked for it\n";
            return Err(Error::raw(ErrorKind::ArgumentConflict, text));
        }
        if let Some(id) = foreign.iter().find(|id| known(id) && is_given(id.as_str())) {
            let text =
                if of_proxies { "is for a simulated fleet, without --proxy" } else { "is for requests, with --proxy" };
            return Err(Error::raw(
                ErrorKind::ArgumentConflict,
                format!("--{} {text}\n", id.as_str().replace('_', "-")),
            ));
        }
        if of_proxies {
            return cost::Args::from_arg_matches(matches).map(|args| Self::Requests(Box::new(args)));
        }
        propagation::ScenarioArgs::from_arg_matches(matches).map(|args| Self::Fleet(Box::new(args)))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: ChurnArgs,
    }

    fn read(line: &[&str]) -> Result<ChurnArgs, String> {
        let words = std::iter::once(&"churn").chain(line);
        Line::try_parse_from(words).map(|line| line.args).map_err(|error| error.to_string())
    }

    #[test]
    fn a_proxy_makes_it_one_of_requests() {
        assert!(matches!(read(&[]), Ok(ChurnArgs::Fleet(_))));
        assert!(matches!(read(&["--nodes", "5", "--seed", "3"]), Ok(ChurnArgs::Fleet(_))));
        let line = ["--proxy", "native", "--seed", "3", "--changes-per-second", "0,5"];
        assert!(matches!(read(&line), Ok(ChurnArgs::Requests(_))), "{:?}", read(&line));
    }

    #[test]
    fn options_of_the_other_are_refused_and_not_overlooked() {
        let refused = read(&["--proxy", "native", "--nodes", "5"]).unwrap_err();
        assert!(refused.contains("--nodes is for a simulated fleet"), "{refused}");
        let refused = read(&["--rounds", "5"]).unwrap_err();
        assert!(refused.contains("--rounds is for requests, with --proxy"), "{refused}");
    }
}
