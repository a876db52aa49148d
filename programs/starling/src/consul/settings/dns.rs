//! Settings of DNS: `dns_config` (<https://developer.hashicorp.com/consul/docs/reference/agent/configuration-file/dns>).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use starling_dns::settings::{ServiceTtls, TTL_S_MAX};
use starling_http_api::parse::{FieldError, Fields, parse_duration};

/// Settings of how old an answer may be, and of a cache: answers come from what is kept current.
const MEANT_BY_ITSELF: [&str; 4] = ["allow_stale", "max_stale", "use_cache", "cache_max_age"];

/// Settings without a part here.
const WITHOUT_EFFECT: [&str; 4] =
    ["recursor_timeout", "recursor_strategy", "enable_additional_node_meta_txt", "prefer_namespace"];

/// What files say of it.
#[derive(Debug, Default)]
pub(super) struct Dns {
    settings: starling_dns::Settings,
    /// Seconds, by services.
    service_ttl: BTreeMap<String, u32>,
}

impl Dns {
    /// Adds what a file says; what it says again counts.
    pub(super) fn take(&mut self, fields: &mut Fields<'_>, ignored: &mut BTreeSet<String>) -> Result<(), FieldError> {
        let Some(mut dns) = fields.object("dns_config")? else { return Ok(()) };
        let settings = &mut self.settings;
        if let Some(field) = dns.take("only_passing") {
            settings.only_passing = field.flag()?;
        }
        if let Some(field) = dns.take("enable_truncate") {
            settings.says_truncated = Some(field.flag()?);
        }
        if let Some(field) = dns.take("disable_compression") {
            settings.compressed = !field.flag()?;
        }
        if let Some(text) = dns.text("node_ttl")? {
            settings.node_ttl_s = ttl_s(&text).map_err(|reason| dns.error("node_ttl", reason))?;
        }
        for (service, text) in dns.text_map("service_ttl")? {
            let path = format!("service_ttl.{service}");
            if service.trim_end_matches('*').contains('*') || service.ends_with("**") {
                return Err(dns.error(&path, "a * stands at the end of a name, or alone"));
            }
            let ttl_s = ttl_s(&text).map_err(|reason| dns.error(&path, reason))?;
            self.service_ttl.insert(service, ttl_s);
        }
        if let Some(most) = dns.count("udp_answer_limit")? {
            if most == 0 {
                return Err(dns.error("udp_answer_limit", "must be above 0: an answer without records says nothing"));
            }
            settings.udp_answers_max = Some(number(most));
        }
        if let Some(most) = dns.count("a_record_limit")? {
            settings.addresses_max = (most > 0).then_some(number(most));
        }
        if let Some(mut soa) = dns.object("soa")? {
            let own = &mut settings.soa;
            for (name, setting) in
                [("refresh", &mut own.refresh_s), ("retry", &mut own.retry_s), ("expire", &mut own.expire_s)]
            {
                *setting = seconds(&mut soa, name)?.unwrap_or(*setting);
            }
            own.negative_ttl_s = seconds(&mut soa, "min_ttl")?.map_or(own.negative_ttl_s, i32::unsigned_abs);
            soa.finish()?;
        }
        dns.ignored(&MEANT_BY_ITSELF);
        for name in WITHOUT_EFFECT {
            if dns.take(name).is_some() {
                ignored.insert(format!("dns_config.{name}"));
            }
        }
        dns.finish()
    }

    /// What the answers are to be like.
    pub(super) fn settings(&self) -> starling_dns::Settings {
        starling_dns::Settings { service_ttl: ServiceTtls::new(self.service_ttl.clone()), ..self.settings.clone() }
    }
}

fn number(count: u32) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

/// Whole seconds of a duration: fractions do not count.
fn ttl_s(text: &str) -> Result<u32, String> {
    let duration: Duration =
        parse_duration(text).ok_or_else(|| format!("{text:?} is no duration; write it like \"10s\" or \"5m\""))?;
    let seconds = u32::try_from(duration.as_secs()).ok().filter(|seconds| *seconds <= TTL_S_MAX);
    seconds.ok_or_else(|| format!("{text:?} is more than {TTL_S_MAX} seconds, the most that DNS can say"))
}

/// A number of seconds, as DNS has them in a SOA record.
fn seconds(soa: &mut Fields<'_>, name: &str) -> Result<Option<i32>, FieldError> {
    let Some(given) = soa.integer(name)? else { return Ok(None) };
    let fits = i32::try_from(given).ok().filter(|seconds| *seconds >= 0);
    fits.map(Some).ok_or_else(|| soa.error(name, format!("{given} is outside 0 to {TTL_S_MAX} seconds")))
}

#[cfg(test)]
mod tests {
    use super::super::{Settings, Text};

    fn text(file: &str, text: &str) -> Text {
        Text::new(file, text, None)
    }

    fn read(file: &str, content: &str) -> anyhow::Result<Settings> {
        let mut settings = Settings::default();
        settings.read(&text(file, content))?;
        Ok(settings)
    }

    fn dns(settings: &Settings) -> starling_dns::Settings {
        settings.guise().expect("a guise").dns
    }

    #[test]
    fn settings_of_dns_count_in_json_and_hcl() {
        let json = r#"{"dns_config": {"only_passing": true, "node_ttl": "1m", "service_ttl": {"*": "5s", "db*": "1500ms"}, "allow_stale": true,
            "max_stale": "10s", "enable_truncate": true, "udp_answer_limit": 3, "a_record_limit": 2, "disable_compression": true,
            "soa": {"refresh": 1, "retry": 2, "expire": 3, "min_ttl": 4}, "recursor_timeout": "2s"}, "recursors": ["10.0.0.1"]}"#;
        let hcl = "dns_config {\n only_passing = true\n node_ttl = \"1m\"\n service_ttl {\n \"*\" = \"5s\"\n \"db*\" = \"1500ms\"\n }\n \
                   allow_stale = true\n max_stale = \"10s\"\n enable_truncate = true\n udp_answer_limit = 3\n a_record_limit = 2\n \
                   disable_compression = true\n soa {\n refresh = 1\n retry = 2\n expire = 3\n min_ttl = 4\n }\n \
                   recursor_timeout = \"2s\"\n}\nrecursors = [\"10.0.0.1\"]\n";
        for (file, text) in [("a.json", json), ("a.hcl", hcl)] {
            let found = read(file, text).expect("settings");
            let settings = dns(&found);
            assert!(settings.only_passing && !settings.compressed, "{settings:?}");
            assert_eq!(settings.node_ttl_s, 60);
            assert_eq!((settings.service_ttl.of("web"), settings.service_ttl.of("db-1")), (5, 1));
            assert_eq!(settings.says_truncated, Some(true));
            assert_eq!((settings.udp_answers_max, settings.addresses_max), (Some(3), Some(2)));
            let soa = settings.soa;
            assert_eq!((soa.refresh_s, soa.retry_s, soa.expire_s, soa.negative_ttl_s), (1, 2, 3, 4));
            let ignored: Vec<_> = found.ignored.iter().map(String::as_str).collect();
            assert_eq!(ignored, ["dns_config.recursor_timeout", "recursors"]);
        }
        assert_eq!(dns(&read("a.json", "{}").expect("settings")), starling_dns::Settings::default());
    }

    #[test]
    fn a_later_file_adds_to_an_earlier_one() {
        let mut settings =
            read("a.json", r#"{"dns_config": {"node_ttl": "1m", "service_ttl": {"a": "1s", "b": "2s"}}}"#)
                .expect("settings");
        let later = r#"{"dns_config": {"node_ttl": "0s", "service_ttl": {"b": "3s"}}}"#;
        settings.read(&text("b.json", later)).expect("settings");
        let dns = dns(&settings);
        assert_eq!((dns.node_ttl_s, dns.service_ttl.of("a"), dns.service_ttl.of("b")), (0, 1, 3));
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        for (text, field) in [
            (r#"{"only_pasing": true}"#, "dns_config.only_pasing"),
            (r#"{"node_ttl": "soon"}"#, "dns_config.node_ttl"),
            (r#"{"node_ttl": "900000h"}"#, "dns_config.node_ttl"),
            (r#"{"service_ttl": {"web": "x"}}"#, "dns_config.service_ttl.web"),
            (r#"{"service_ttl": {"w*b": "1s"}}"#, "dns_config.service_ttl.w*b"),
            (r#"{"service_ttl": {"**": "1s"}}"#, "dns_config.service_ttl.**"),
            (r#"{"udp_answer_limit": 0}"#, "dns_config.udp_answer_limit"),
            (r#"{"a_record_limit": -1}"#, "dns_config.a_record_limit"),
            (r#"{"soa": {"min_ttl": -1}}"#, "dns_config.soa.min_ttl"),
            (r#"{"soa": {"expire": 4294967296}}"#, "dns_config.soa.expire"),
            (r#"{"soa": {"serial": 1}}"#, "dns_config.soa.serial"),
            (r#"{"enable_truncate": "often"}"#, "dns_config.enable_truncate"),
        ] {
            let error = read("a.json", &format!("{{\"dns_config\": {text}}}")).expect_err(text).to_string();
            assert!(error.contains(field), "{text}: {error}");
        }
    }
}
