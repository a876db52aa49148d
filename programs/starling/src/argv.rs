//! Flags as Go programs write them: `-sidecar-for web-1`, `-kind=service-defaults`, `-cas=true`.
//!
//! Consul's users have such flags in scripts and fingers. Before clap sees the arguments, a single dash in front of the
//! name of a long flag becomes a double one. Only names of the command at hand are touched, so `-o json`, `-5` and
//! everything behind `--` stay as they are.

use std::ffi::OsString;

use clap::{Arg, ArgAction, Command};

/// The arguments with double dashes in front of long flags. `root` must have been built ([`Command::build`]).
pub(crate) fn normalise(root: &Command, arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut command = root;
    let mut arguments = arguments.into_iter();
    let mut normal: Vec<OsString> = arguments.next().into_iter().collect();
    while let Some(argument) = arguments.next() {
        let Some(text) = argument.to_str() else {
            normal.push(argument);
            continue;
        };
        if text == "--" {
            normal.push(argument);
            normal.extend(arguments);
            return normal;
        }
        match flag(command, text) {
            Some(Flag { arg, value: Some(value), .. }) if is_switch(arg) && truth(value).is_some() => {
                if truth(value) == Some(true) {
                    normal.push(format!("--{}", name(text)).into());
                }
            }
            Some(Flag { arg, value, dashes }) => {
                let takes_next = value.is_none() && needs_value(arg);
                normal.push(if dashes == 1 { format!("-{text}").into() } else { argument });
                // The value may look like a flag or like a command; it is neither.
                normal.extend(takes_next.then(|| arguments.next()).flatten());
            }
            None if is_unknown_long(command, text) => normal.push(format!("-{text}").into()),
            None => {
                let takes_next = short_with_value(command, text);
                command = command.find_subcommand(text).unwrap_or(command);
                normal.push(argument);
                normal.extend(takes_next.then(|| arguments.next()).flatten());
            }
        }
    }
    normal
}

/// A long flag of the command, with one dash or two.
struct Flag<'a> {
    arg: &'a Arg,
    value: Option<&'a str>,
    dashes: usize,
}

fn flag<'a>(command: &'a Command, text: &'a str) -> Option<Flag<'a>> {
    let dashes = if text.starts_with("--") { 2 } else { usize::from(text.starts_with('-')) };
    let name = name(text);
    // One letter behind one dash is a short flag, even where a long one has that name.
    if dashes == 0 || (dashes == 1 && name.len() < 2) {
        return None;
    }
    let arg = command
        .get_arguments()
        .find(|arg| arg.get_long() == Some(name) || arg.get_all_aliases().unwrap_or_default().contains(&name))?;
    Some(Flag { arg, value: text.split_once('=').map(|(_, value)| value), dashes })
}

/// Whether it is written as a long flag that the command has not, so that it is told by its whole name.
fn is_unknown_long(command: &Command, text: &str) -> bool {
    let Some(name) = text.strip_prefix('-').filter(|name| name.len() > 1 && !name.starts_with('-')) else {
        return false;
    };
    let first = name.chars().next().filter(char::is_ascii_alphabetic);
    let is_short = |arg: &Arg| arg.get_short().is_some() && arg.get_short() == first;
    // What belongs to another program is that program's.
    let passes_on = |arg: &Arg| arg.is_trailing_var_arg_set() || arg.is_allow_hyphen_values_set();
    first.is_some() && !command.get_arguments().any(|arg| is_short(arg) || passes_on(arg))
}

fn name(text: &str) -> &str {
    let name = text.trim_start_matches('-');
    name.split_once('=').map_or(name, |(name, _)| name)
}

/// Whether the next argument is its value in any case; one that may go without is followed by whatever it is.
fn needs_value(arg: &Arg) -> bool {
    arg.get_action().takes_values() && arg.get_num_args().is_none_or(|count| count.min_values() > 0)
}

fn is_switch(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::SetTrue)
}

/// Go's truth values.
fn truth(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// Whether it is a short flag alone whose value is the next argument.
fn short_with_value(command: &Command, text: &str) -> bool {
    let mut characters = text.chars();
    let (Some('-'), Some(short), None) = (characters.next(), characters.next(), characters.next()) else {
        return false;
    };
    command.get_arguments().any(|arg| arg.get_short() == Some(short) && arg.get_action().takes_values())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::arguments::Arguments;

    #[track_caller]
    fn becomes(line: &str, expected: &str) {
        let mut root = Arguments::command();
        root.build();
        let words = line.split_whitespace().map(OsString::from);
        let normal = normalise(&root, std::iter::once("starling".into()).chain(words));
        let normal: Vec<_> = normal.iter().skip(1).map(|word| word.to_str().unwrap()).collect();
        assert_eq!(normal.join(" "), expected, "{line}");
    }

    #[test]
    fn consuls_flags_become_ours() {
        becomes("connect envoy -sidecar-for web-1 -bootstrap", "connect envoy --sidecar-for web-1 --bootstrap");
        becomes("config read -kind=service-defaults -name web", "config read --kind=service-defaults --name web");
        becomes("config write -cas -modify-index=7 -", "config write --cas --modify-index=7 -");
        becomes("intention create -deny -replace a b", "intention create --deny --replace a b");
        becomes("services deregister -id web-1", "services deregister --id web-1");
        becomes("nodes -http-addr=127.0.0.1:1 -format json", "nodes --http-addr=127.0.0.1:1 --format json");
        becomes("dev -demo", "dev --demo");
        becomes("dev -help", "dev --help");
    }

    #[test]
    fn gos_truth_values_switch_a_flag_on_and_off() {
        becomes("config delete -cas=true", "config delete --cas");
        becomes("config delete --cas=1", "config delete --cas");
        becomes("config delete -cas=false -name web", "config delete --name web");
        becomes("config delete -cas=maybe", "config delete --cas=maybe");
    }

    #[test]
    fn what_is_no_long_flag_stays() {
        becomes("nodes -o json", "nodes -o json");
        becomes("nodes -ojson", "nodes -ojson");
        becomes("nodes -n 5", "nodes -n 5");
        becomes("changes -5", "changes -5");
        becomes("nodes -h", "nodes -h");
        becomes("config write -", "config write -");
        becomes("can a b --path /x", "can a b --path /x");
        // What a command is run with is that command's.
        becomes("lock a ls -recurse", "lock a ls -recurse");
        // A flag of another command is told by its name.
        becomes("nodes -sidecar-for web", "nodes --sidecar-for web");
    }

    #[test]
    fn a_value_is_neither_a_flag_nor_a_command() {
        becomes("services deregister -id -id", "services deregister --id -id");
        becomes("-http-addr config intention list -o json", "--http-addr config intention list -o json");
        becomes("-http-addr x config list -kind y", "--http-addr x config list --kind y");
    }

    #[test]
    fn what_follows_a_flag_that_may_go_without_a_value_is_looked_at() {
        becomes("changes 12 -wait -until applied:99%", "changes 12 --wait --until applied:99%");
        becomes("changes -wait 10s -http-addr x", "changes --wait 10s --http-addr x");
    }

    #[test]
    fn behind_two_dashes_nothing_is_touched() {
        becomes(
            "connect envoy -sidecar-for web-1 -- -bootstrap -l debug",
            "connect envoy --sidecar-for web-1 -- -bootstrap -l debug",
        );
    }

    #[test]
    fn arguments_that_are_no_text_pass_through() {
        use std::os::unix::ffi::OsStringExt;
        let mut root = Arguments::command();
        root.build();
        let odd = OsString::from_vec(vec![b'-', 0xff]);
        assert_eq!(normalise(&root, ["starling".into(), odd.clone()]), [OsString::from("starling"), odd]);
    }
}
