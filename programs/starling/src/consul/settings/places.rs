//! Addresses as Consul's settings write them: IP addresses with blanks between them, and templates such as `{{ GetPrivateIP }}`, by what is
//! documented of them (<https://pkg.go.dev/github.com/hashicorp/go-sockaddr/template>). What is not understood is refused by its name.

use std::net::IpAddr;

use regex::Regex;

use super::interfaces::{Interface, Network};
use crate::outcome::usage;

/// What is said of a function that there is not.
const UNDERSTOOD: &str = "understood are GetPrivateIP, GetPublicIP, GetInterfaceIP \"NAME\", their plurals, GetAllInterfaces, \
     GetDefaultInterfaces, GetPrivateInterfaces and GetPublicInterfaces, and behind a | include, exclude, sort, limit, offset, attr and \
     join; or write the address itself";

/// Every address that a setting names, at least one; `interfaces` are asked for if there is a template.
pub(super) fn all(name: &str, text: &str, interfaces: impl Fn() -> Vec<Interface>) -> anyhow::Result<Vec<IpAddr>> {
    let expanded = expand(text, &interfaces).map_err(|reason| usage(format!("{name}: {reason}")))?;
    let mut found = Vec::new();
    for word in expanded.split_whitespace() {
        let address = word.parse().map_err(|_| {
            usage(format!("{name}: {word:?} is no IP address; a Unix socket, unix://PATH, is for addresses.http alone"))
        })?;
        if !found.contains(&address) {
            found.push(address);
        }
    }
    match found.is_empty() {
        true => Err(usage(format!("{name}: {text:?} names no address of this machine; write the address itself"))),
        false => Ok(found),
    }
}

/// The one address that a setting names.
pub(super) fn one(name: &str, text: &str, interfaces: impl Fn() -> Vec<Interface>) -> anyhow::Result<IpAddr> {
    match all(name, text, interfaces)?.as_slice() {
        [one] => Ok(*one),
        several => {
            let several: Vec<_> = several.iter().map(ToString::to_string).collect();
            Err(usage(format!("{name}: has to be one address, and not {}", several.join(" and "))))
        }
    }
}

/// The text with its templates replaced by what they come to.
fn expand(text: &str, interfaces: &impl Fn() -> Vec<Interface>) -> Result<String, String> {
    let (mut rest, mut expanded) = (text, String::new());
    while let Some((before, template)) = rest.split_once("{{") {
        let (template, after) = template.split_once("}}").ok_or_else(|| format!("{text:?} has a {{{{ without }}}}"))?;
        expanded.push_str(before);
        let template = template.strip_prefix("- ").unwrap_or(template);
        expanded.push_str(&evaluate(template.strip_suffix(" -").unwrap_or(template), interfaces)?);
        rest = after;
    }
    expanded.push_str(rest);
    Ok(expanded)
}

/// What a pipe hands on.
enum Value {
    Interfaces(Vec<Interface>),
    Text(String),
}

fn evaluate(template: &str, interfaces: &impl Fn() -> Vec<Interface>) -> Result<String, String> {
    let mut value = None;
    for stage in stages(template)? {
        let words: Vec<&str> = stage.iter().map(String::as_str).collect();
        value = Some(match (value, words.as_slice()) {
            (None, source) => begin(source, interfaces)?,
            (Some(Value::Interfaces(found)), step) => narrow(found, step)?,
            (Some(Value::Text(_)), step) => {
                return Err(format!("{:?} follows something that is a text already", step.join(" ")));
            }
        });
    }
    match value {
        Some(Value::Text(text)) => Ok(text),
        Some(Value::Interfaces(_)) => {
            Err(format!("{{{{{template}}}}} ends with interfaces: add | attr \"address\", or | join \"address\" \" \""))
        }
        None => Err("a template is empty".to_owned()),
    }
}

/// The words of each stage; those in quotes are one word.
fn stages(template: &str) -> Result<Vec<Vec<String>>, String> {
    let mut stages = vec![Vec::new()];
    let mut rest = template.trim_start();
    while let Some(first) = rest.chars().next() {
        let end = match first {
            '|' => {
                stages.push(Vec::new());
                1
            }
            '"' | '`' => {
                let quoted = rest[1..].split(first).next().filter(|quoted| quoted.len() + 1 < rest.len());
                let quoted = quoted.ok_or_else(|| format!("{{{{{template}}}}} has a quote without its end"))?;
                stages.last_mut().into_iter().for_each(|stage| stage.push(quoted.to_owned()));
                quoted.len() + 2
            }
            _ => {
                let end = rest.find(|c: char| c.is_whitespace() || c == '|').unwrap_or(rest.len());
                stages.last_mut().into_iter().for_each(|stage| stage.push(rest[..end].to_owned()));
                end
            }
        };
        rest = rest[end..].trim_start();
    }
    Ok(stages)
}

/// The first stage: where interfaces or addresses come from.
fn begin(stage: &[&str], interfaces: &impl Fn() -> Vec<Interface>) -> Result<Value, String> {
    let reached = |is_wanted: fn(&Interface) -> bool| -> Vec<Interface> {
        let mut found = interfaces();
        found.retain(|it| it.is_default && it.is_up && it.is_forwardable() && is_wanted(it));
        found.sort_by_key(|it| it.address);
        found
    };
    let texts = |found: Vec<Interface>, most: usize| {
        let texts: Vec<_> = found.into_iter().take(most).map(|it| it.address.to_string()).collect();
        Value::Text(texts.join(" "))
    };
    let named = |name: &str| {
        let mut found = interfaces();
        found.retain(|it| it.name == name && it.is_up && !it.is_link_local());
        found.sort_by_key(|it| it.address);
        found
    };
    Ok(match stage {
        ["GetAllInterfaces"] => Value::Interfaces(interfaces()),
        ["GetDefaultInterfaces"] => Value::Interfaces(interfaces().into_iter().filter(|it| it.is_default).collect()),
        ["GetPrivateInterfaces"] => Value::Interfaces(reached(Interface::is_private)),
        ["GetPublicInterfaces"] => Value::Interfaces(reached(Interface::is_public)),
        ["GetPrivateIP"] => texts(reached(Interface::is_private), 1),
        ["GetPrivateIPs"] => texts(reached(Interface::is_private), usize::MAX),
        ["GetPublicIP"] => texts(reached(Interface::is_public), 1),
        ["GetPublicIPs"] => texts(reached(Interface::is_public), usize::MAX),
        ["GetInterfaceIP", name] => texts(named(name), 1),
        ["GetInterfaceIPs", name] => texts(named(name), usize::MAX),
        other => return Err(format!("there is no {:?} to begin a template with: {UNDERSTOOD}", other.join(" "))),
    })
}

/// A further stage.
fn narrow(mut found: Vec<Interface>, stage: &[&str]) -> Result<Value, String> {
    let count = |text: &str| text.parse::<usize>().map_err(|_| format!("{text:?} is no number"));
    match stage {
        ["include", by, what] => keep(&mut found, by, what, true)?,
        ["exclude", by, what] => keep(&mut found, by, what, false)?,
        ["limit", most] => found.truncate(count(most)?),
        ["offset", first] => drop(found.drain(..count(first)?.min(found.len()))),
        ["sort", by] => {
            for by in by.split(',').rev() {
                let (by, is_down) = by.strip_prefix('-').map_or((by.trim_start_matches('+'), false), |by| (by, true));
                match by {
                    "address" => found.sort_by_key(|it| it.address),
                    "name" => found.sort_by(|a, b| a.name.cmp(&b.name)),
                    "type" => found.sort_by_key(|it| it.address.is_ipv6()),
                    "default" => found.sort_by_key(|it| !it.is_default),
                    other => {
                        return Err(format!("sort {other:?} is not understood: address, name, type and default are"));
                    }
                }
                if is_down {
                    found.reverse();
                }
            }
        }
        ["attr", attribute] => {
            let first = found.first().map(|it| it.attribute(attribute)).transpose()?;
            return Ok(Value::Text(first.unwrap_or_default()));
        }
        ["join", attribute, between] => {
            let texts: Result<Vec<_>, _> = found.iter().map(|it| it.attribute(attribute)).collect();
            return Ok(Value::Text(texts?.join(between)));
        }
        other => return Err(format!("there is no {:?} in a template: {UNDERSTOOD}", other.join(" "))),
    }
    Ok(Value::Interfaces(found))
}

/// Keeps those of which it is true, or those of which it is not.
fn keep(found: &mut Vec<Interface>, by: &str, what: &str, is_kept: bool) -> Result<(), String> {
    let pattern = || Regex::new(what).map_err(|error| format!("{what:?} is no regular expression: {error}"));
    let is_true: Box<dyn Fn(&Interface) -> bool> = match by {
        "name" => {
            let pattern = pattern()?;
            Box::new(move |it| pattern.is_match(&it.name))
        }
        "address" => {
            let pattern = pattern()?;
            Box::new(move |it| pattern.is_match(&it.address.to_string()))
        }
        "type" => match what.to_ascii_lowercase().as_str() {
            "ip" => Box::new(|_| true),
            "ipv4" => Box::new(|it| it.address.is_ipv4()),
            "ipv6" => Box::new(|it| it.address.is_ipv6()),
            other => return Err(format!("the type {other:?} is not understood: IP, IPv4 and IPv6 are")),
        },
        "flags" => {
            let flags: Vec<String> = what.split('|').map(|flag| flag.trim().to_owned()).collect();
            for flag in &flags {
                if !Interface::FLAGS.contains(&flag.as_str()) {
                    return Err(format!("the flag {flag:?} is not understood: {} are", Interface::FLAGS.join(", ")));
                }
            }
            Box::new(move |it| flags.iter().all(|flag| it.has(flag)))
        }
        "network" => {
            let network: Network = what.parse()?;
            Box::new(move |it| network.has(it.address))
        }
        "rfc" => match what {
            "1918" => Box::new(|it| Network::of_rfc_1918().iter().any(|network| network.has(it.address))),
            "6890" => Box::new(Interface::is_private),
            other => return Err(format!("RFC {other} is not understood here: 1918 and 6890 are")),
        },
        other => {
            return Err(format!("{other:?} is nothing to choose by: name, address, type, flags, network and rfc are"));
        }
    };
    found.retain(|it| is_true(it) == is_kept);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Vec<Interface> {
        let at = |name: &str, address: &str, is_default| Interface {
            name: name.to_owned(),
            address: address.parse().expect("an address"),
            is_default,
            is_up: true,
        };
        vec![
            at("lo", "127.0.0.1", false),
            at("eth0", "10.0.0.7", true),
            at("eth0", "192.0.2.9", true),
            at("eth0", "fe80::1", true),
            at("eth1", "172.16.3.4", false),
            at("docker0", "172.17.0.1", false),
        ]
    }

    #[track_caller]
    fn comes_to(text: &str, expected: &str) {
        let found = all("client_addr", text, machine).map_err(|error| error.to_string()).expect(text);
        assert_eq!(found.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "), expected, "{text}");
    }

    #[test]
    fn addresses_stand_beside_each_other_and_beside_templates() {
        comes_to("10.0.0.1", "10.0.0.1");
        comes_to("127.0.0.1  ::1", "127.0.0.1 ::1");
        comes_to("127.0.0.1 {{ GetPrivateIP }}", "127.0.0.1 10.0.0.7");
        comes_to("{{GetPublicIP}}", "192.0.2.9");
        comes_to("{{ GetInterfaceIP \"eth1\" }}", "172.16.3.4");
        comes_to("{{ GetInterfaceIP `docker0` }} 172.17.0.1", "172.17.0.1");
        comes_to("{{ GetInterfaceIPs \"eth0\" }}", "10.0.0.7 192.0.2.9");
    }

    #[test]
    fn interfaces_are_narrowed_and_one_of_their_attributes_is_taken() {
        comes_to(
            "{{ GetAllInterfaces | include \"name\" \"^eth\" | exclude \"rfc\" \"1918\" | include \"type\" \"IPv4\" | attr \"address\" }}",
            "192.0.2.9",
        );
        comes_to("{{ GetAllInterfaces | include \"flags\" \"loopback\" | join \"address\" \" \" }}", "127.0.0.1");
        comes_to(
            "{{ GetAllInterfaces | include \"network\" \"172.16.0.0/12\" | sort \"-address\" | join \"address\" \" \" }}",
            "172.17.0.1 172.16.3.4",
        );
        comes_to("{{ GetPrivateInterfaces | limit 1 | attr \"address\" }}", "10.0.0.7");
        comes_to(
            "{{- GetAllInterfaces | include \"flags\" \"forwardable|up\" | offset 2 | limit 1 | attr \"address\" -}}",
            "172.16.3.4",
        );
        comes_to("{{ GetDefaultInterfaces | exclude \"flags\" \"forwardable\" | attr \"address\" }}", "fe80::1");
    }

    #[test]
    fn what_is_not_understood_is_refused_by_its_name() {
        for (text, reason) in [
            ("web", "\"web\" is no IP address"),
            ("", "names no address"),
            ("{{ GetInterfaceIP \"eth9\" }}", "names no address"),
            ("{{ GetPrivateIP", "without }}"),
            ("{{ GetSecretIP }}", "there is no \"GetSecretIP\""),
            ("{{ GetAllInterfaces | math \"address\" \"+1\" }}", "there is no \"math address +1\""),
            ("{{ GetAllInterfaces }}", "add | attr"),
            ("{{ GetAllInterfaces | include \"size\" \"8\" }}", "\"size\" is nothing to choose by"),
            ("{{ GetAllInterfaces | include \"name\" \"(\" }}", "no regular expression"),
            ("{{ GetAllInterfaces | include \"flags\" \"wet\" }}", "the flag \"wet\""),
            ("{{ GetAllInterfaces | attr \"colour\" }}", "colour"),
            ("{{ GetPrivateIP | limit 1 }}", "a text already"),
            ("{{ GetInterfaceIP \"eth0 }}", "without its end"),
            ("{{ }}", "there is no \"\""),
        ] {
            let error = all("client_addr", text, machine).expect_err(text).to_string();
            assert!(error.starts_with("client_addr: ") && error.contains(reason), "{text}: {error}");
        }
        let several = one("bind_addr", "10.0.0.1 10.0.0.2", machine).expect_err("two").to_string();
        assert!(several.contains("10.0.0.1 and 10.0.0.2"), "{several}");
    }
}
